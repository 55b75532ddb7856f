# One command per chore; .ci/run runs `make test`. Everything lives in .venv, .build and .demo.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The demo and a server need less than the tests do; who has it all has that too.
DEMO_READY := $(if $(wildcard $(READY)),$(READY),$(VENV)/.ready-demo)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable

.DEFAULT_GOAL := help
# Every chore is a name and no file.
CHORES := $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))
.PHONY: $(CHORES)

help: ## What there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-22s %s\n", $$1, $$2}'

# What pip and apt bring comes at the same time. Modules are compiled once, by the first process that imports them.
demo: export PYTHONDONTWRITEBYTECODE :=
demo: ## Draw photos, train, serve, and run SQL on DuckDB and PostgreSQL
	@$(MAKE) --no-print-directory --jobs=2 demo-ready
	$(BIN)/python -m examples.foodlog.demo

demo-cluster: $(DEMO_READY) ray ## Workers on two nodes that share nothing, one of which is killed: the same answer
	$(BIN)/python -m examples.foodlog.cluster_demo $(FLAGS)

demo-ready: $(DEMO_READY) postgres

# Modules are compiled once, and not again by each process that a test starts.
test: export PYTHONDONTWRITEBYTECODE :=
test: ## All tests, on PostgreSQL clusters of their own, in three processes (PROCESSES=…)
	@$(MAKE) --no-print-directory --jobs=3 test-ready
	$(BIN)/python -m tests.once_more -n $(or $(PROCESSES),3) --dist loadfile

# What pip and apt bring comes while the code is looked over and the tests are compiled: each of their processes
# would compile them all.
.PHONY: test-ready tests-compiled
test-ready: $(READY) packages foreign compiled lint tests-compiled

# Benchmarks measure what ships.
$(filter bench-%,$(CHORES)): compiled

compiled: $(READY) ## What decides, compiled by mypyc, where a C compiler is
	@$(BIN)/python -m server.compiled.build || true # it decides in Python then

tests-compiled: $(READY)
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 || true # the tests themselves say what is wrong

test-security: $(READY) packages ## What attackers would try, one by one (a part of `make test`)
	$(BIN)/python -m pytest -m security

fuzz: $(READY) packages ## What strangers may send, at random, for ten minutes a fuzzer (FUZZ_SECONDS=…)
	ML_UDF_FUZZ_SECONDS=$(or $(FUZZ_SECONDS),600) $(BIN)/python -m pytest -p no:cacheprovider tests/fuzz

SANITIZED := .build/sanitized
WATCHED = LD_PRELOAD=$$(cc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 ML_UDF_SANITIZED=$(CURDIR)/$(SANITIZED)
fuzz-front: $(READY) ## The native front at random, its memory watched and made to run out (FUZZ_SECONDS=… FLAGS='--requests 10000000')
	$(BIN)/python -m server.extensions $(SANITIZED)
	$(WATCHED) ML_UDF_FUZZ_SECONDS=$(or $(FUZZ_SECONDS),600) $(BIN)/python -m pytest -p no:cacheprovider tests/fuzz/test_native_front.py
	$(WATCHED) $(BIN)/python -m tests.fuzz.many_requests --seconds $(or $(FUZZ_SECONDS),600) $(FLAGS)

fuzz-answers: $(READY) ## The native store of kept answers at random, beside S3-FIFO in Python, as above (FUZZ_SECONDS=…)
	$(BIN)/python -m server.extensions $(SANITIZED)
	$(WATCHED) ML_UDF_FUZZ_SECONDS=$(or $(FUZZ_SECONDS),600) $(BIN)/python -m pytest -p no:cacheprovider tests/fuzz/test_native_answers.py

soak-front: $(READY) ## Ten million requests and clients that vanish: memory, and what is held of bodies (FLAGS='--seconds 3000')
	$(BIN)/python -m tests.stress.soak $(FLAGS)

wheels: $(READY) ## A wheel for this machine, with the modules in C, and a pure one, into dist/
	ML_UDF_WHEEL=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	ML_UDF_PURE=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

mutation: $(READY) ## Seed faults into the core, one at a time: does a unit test notice? (20 minutes)
	$(BIN)/python -m tests.mutation

lint: $(READY) ## Style, strict types, import walls
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

serve: $(DEMO_READY) ## Serve the demo's home folder on http://127.0.0.1:8080
	$(BIN)/ml-udf serve --home .demo/home --media-root .demo/images

# Ray is no part of what the tests install: 371 MB that a server on one machine does without.
ray: $(DEMO_READY)
	@$(BIN)/python -c 'import ray' 2>/dev/null || $(INSTALL) '.[ray]'

test-cluster: $(READY) ray ## Workers on a Ray cluster of several nodes on this machine: what may die, with its seconds (3 minutes)
	$(BIN)/python -m pytest tests/cluster

bench-sql: $(READY) packages ## Rows/s of SQL against the bare loop and row-by-row forms
	$(BIN)/python -m tests.benchmarks.sql
	$(BIN)/python -m tests.benchmarks.sql_ensemble

bench-embeddings: $(READY) packages ## Rows/s of storing embeddings of texts, beside a bare loop (FLAGS='--rows 1000000')
	$(BIN)/python -m tests.benchmarks.embeddings $(FLAGS)

bench-tables: $(READY) packages ## Rows/s of SQL with a model of tables, beside the estimator alone and the usual ways (FLAGS='--rows 200000')
	$(BIN)/python -m tests.benchmarks.tables $(FLAGS)

bench-rewrite: $(READY) ## Rows that DuckDB sends to a model: queries as written, and with the cheap first
	$(BIN)/python -m tests.benchmarks.rewrite $(FLAGS)

bench-remote: $(READY) ## Rows/s through a remote model, beside a direct loop over the same endpoint (FLAGS='--rows 2000')
	$(BIN)/python -m tests.benchmarks.remote $(FLAGS)

bench-pool: $(READY) ray ## A worker on this machine beside one on a Ray node, by our frames and by actor calls (FLAGS='--rounds 3')
	$(BIN)/python -m tests.benchmarks.pool $(FLAGS)

bench-fetching: $(READY) ray ## How a model reaches a node: in our pieces, by Ray's object store, copied (FLAGS='--rounds 8')
	$(BIN)/python -m tests.benchmarks.fetching $(FLAGS)

bench-scale: $(READY) ## 1 to 64 devices on 1 to 16 nodes, training by 1 to 16 workers, the front's limit: simulated (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.scale $(FLAGS)

bench-ensemble: $(READY) packages ## Rows/s of an ensemble of three beside a single model
	$(BIN)/python -m tests.benchmarks.ensemble

bench-combination: $(READY) ## Rules of combination on held-out predictions of real models
	$(BIN)/python -m tests.benchmarks.combination

bench-wishes: $(READY) ## What it costs that a function names no model: a million decisions, and live beside a name (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.wishes $(FLAGS)

bench-cascade: $(READY) ## A proxy before a function: agreement on rows never used, device time saved (FLAGS='--parts texts')
	$(BIN)/python -m tests.benchmarks.cascade $(FLAGS)

bench-variants: $(READY) ## What variants are worth: ONNX, int8, bf16 of five architectures, speed and accuracy (FLAGS='--photos 800 --epochs 4')
	$(BIN)/python -m tests.benchmarks.variants $(FLAGS)

bench-pipelines: $(READY) ## How a pipeline's goal is split among its stages: in the simulator, and live (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.pipelines $(FLAGS)

bench-prefix: $(READY) ## Functions on one backbone, with its passes shared and not (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.prefix $(FLAGS)

bench-ensembles: $(READY) ## Which members answer: every selection policy under load, in the simulator (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.ensembles $(FLAGS)

bench-ensembles-live: $(READY) ## The same on a running server, beside the simulator; its members fail (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.ensembles_live $(FLAGS)

bench-rafiki: $(READY) ## Rafiki's Figures 14 to 16: three models over a cycle, in the simulator (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.ensembles_rafiki $(FLAGS)

bench-clipper: $(READY) ## Clipper's Figures 8 to 10: a member fails, straggles, suits one context (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.clipper $(FLAGS)

bench-front: $(READY) ## What a row costs the server's own thread, stage by stage, in CPU µs (FLAGS='--kbytes 0.1')
	$(BIN)/python -m tests.benchmarks.front_cost $(FLAGS)

bench-loads: $(READY) ## Loads of a 233 MB model beside the link's rate and what dd reads (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.load_rates $(FLAGS)

bench-selection: $(READY) ## What selection adds to a row's cost in the scheduler's core
	$(BIN)/python -m tests.benchmarks.selection_cost $(FLAGS)

bench-cache: $(READY) packages ## A dashboard's query asked again on both engines; what a row costs that is new
	$(BIN)/python -m tests.benchmarks.answer_cache $(FLAGS)

bench-cache-rules: $(READY) ## Which answers a cache keeps: hits and cost of every eviction rule, beside Belady's (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.cache_rules $(FLAGS)

bench-cache-memory: $(READY) ## What kept answers take while 10 million inputs come once each (FLAGS='--inputs 1000000')
	$(BIN)/python -m tests.benchmarks.cache_memory $(FLAGS)

.PHONY: bench-offline
bench-offline: $(READY) ## A scan beside online rows: backfill and INFaaS's threshold, in the simulator and live (FLAGS='--parts live')
	$(BIN)/python -m tests.benchmarks.offline $(FLAGS)

bench-fairness: $(READY) ## A caller of 20 rows a second beside one with a million, in the simulator and live (FLAGS='--parts simulated')
	$(BIN)/python -m tests.benchmarks.fairness $(FLAGS)

bench-schedule: $(READY) ## Every batching policy in the simulator; on uneven devices; with ensembles of three
	$(BIN)/python -m tests.benchmarks.schedule
	$(BIN)/python -m tests.benchmarks.schedule_uneven
	$(BIN)/python -m tests.benchmarks.schedule_ensembles

bench-residency: $(READY) ## Which models a device holds: every placement policy in the simulator (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.residency $(FLAGS)

bench-capacity: $(READY) ## Workers and copies that follow the load: every capacity policy, simulated (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.capacity $(FLAGS)

bench-capacity-live: $(READY) ## Workers that follow a load of 10, 400 and 10 rows/s, beside the simulator (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.capacity_live $(FLAGS)

bench-decisions: $(READY) ## What a decision about residency costs, and one about capacity
	$(BIN)/python -m tests.benchmarks.residency_decisions $(FLAGS)
	$(BIN)/python -m tests.benchmarks.capacity_decisions

bench-residency-live: $(READY) ## Models that come and go on a running server, beside the simulator (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.residency_live $(FLAGS)

bench-live: $(READY) ## The simulator beside the running server, a scan beside callers, clients that vanish
	$(BIN)/python -m tests.benchmarks.schedule_live
	$(BIN)/python -m tests.benchmarks.vanishing

bench-learning: $(READY) ## Default train beside a practitioner's five lines; hours (FLAGS='--seeds 2 --only wine')
	$(BIN)/python -m tests.benchmarks.learning $(FLAGS)

bench-heads: $(READY) ## Photos through a frozen backbone, beside five lines by hand (FLAGS='--weights FILE.pth')
	$(BIN)/python -m tests.benchmarks.backbone_heads $(FLAGS)

bench-tuning: $(READY) ## Tuning policies on digits and synthetic images; one worker against two
	$(BIN)/python -m tests.benchmarks.tuning
	$(BIN)/python -m tests.benchmarks.tuning_workers

bench-snapshot: $(READY) ## Memory and time of a dataset's snapshot by its rows
	$(BIN)/python -m tests.benchmarks.snapshot

bench-train-rows: $(READY) ## Memory and time of training by its rows, 10,000,000 among them; hours of one core
	$(BIN)/python -m tests.benchmarks.train_rows

bench-training-beside: $(READY) ## Callers' latency beside a study on the same worker
	$(BIN)/python -m tests.benchmarks.training_beside

bench-plan-node: $(READY) packages ## What the plan node costs, and what queries without it pay
	$(BIN)/python -m tests.benchmarks.plan_node

stress-plan-node: $(READY) packages ## Random cancels and dying workers under batched SQL (10 minutes)
	$(BIN)/python -m tests.postgres.batch.stress

stress-serving: $(READY) ## A server under every kind of caller while workers hang and die (10 minutes; MINUTES=…)
	$(BIN)/python -m tests.stress --minutes $(or $(MINUTES),10)

stress-feedback: $(READY) packages ## A million labels in one statement, on each engine, while server and client are killed
	$(BIN)/python -m tests.stress.feedback $(FLAGS)

stress-watch: $(READY) packages ## 8 sessions write a watched table while all that answers it is killed (FLAGS='--seconds 600')
	$(BIN)/python -m tests.stress.watch $(FLAGS)

bench-serving: $(READY) ## Ours beside mosec, LitServe, BentoML, Ray Serve and Triton
	$(BIN)/python -m tests.benchmarks.serving

bench-overload: $(READY) ## Rows in time at 1 to 10 times what a server stands, and how soon the others are refused (FLAGS='--rounds 3')
	$(BIN)/python -m tests.benchmarks.overload $(FLAGS)

bench-fronts: $(READY) ## What a row costs the server on the native front, beside the Python one (FLAGS='--rounds 3')
	$(BIN)/python -m tests.benchmarks.fronts $(FLAGS)

bench-watch: $(READY) packages ## What the triggers of a watch cost those who write (FLAGS='--rounds 5')
	$(BIN)/python -m tests.benchmarks.watch $(FLAGS)

bench-pages: $(READY) packages ## What pages weigh, how soon they are there, what fifty open ones cost (FLAGS='--rounds 8')
	$(BIN)/python -m tests.benchmarks.pages $(FLAGS)

bench-parity: $(READY) ## Parity models beside hedged resends and partial ensembles: the tail, and what is right (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.parity $(FLAGS)

bench-pictures: $(READY) ## Two functions of the same photos in one query, decoded once and for each (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.pictures $(FLAGS)

bench-decoding: $(READY) ## Photos a second from JPEG bytes to pixels, beside Pillow in threads and in DataLoader's processes (FLAGS='--rounds 9')
	$(BIN)/python -m tests.benchmarks.decoding $(FLAGS)

bench-gpu: $(READY) ## A worker on a CUDA device: batches, graphs, precisions, loads (FLAGS=--quick)
	$(BIN)/python -m tests.benchmarks.gpu $(FLAGS)

bench-before: $(READY) packages ## bench-sql, -ensemble and servers here and at BASE=<commit>, side by side
	$(BIN)/python -m tests.benchmarks.before --base $(or $(BASE),HEAD~1)

# A stamp is newer than pyproject.toml when the environment holds what it asks for. pip would compile every module,
# most of which nobody imports: they are compiled as they are imported.
$(READY): pyproject.toml | $(BIN)/python
	$(INSTALL) '.[dev]'
	touch $@

$(VENV)/.ready-demo: pyproject.toml | $(BIN)/python
	$(INSTALL) '.[all]'
	touch $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: apt-get install python3.11 python3.11-venv, or make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "installing python3-venv"; apt-get update -q && apt-get install -y -q --no-install-recommends python3.11-venv; }
	$(PYTHON) -m venv $(VENV)

# PostgreSQL with PL/Python, and Chromium; where one cannot be installed, what needs it says so and the rest goes on.
packages: | $(BIN)/python # which may itself need apt
	@sh .ci/packages

postgres: | $(BIN)/python
	@sh .ci/packages postgres pgvector

# A server that is not ours, in an environment of its own, for the tests that call one.
foreign: .build/mlserver/.ready .build/triton/.tried
.build/mlserver/.ready:
	$(PYTHON) -m venv .build/mlserver
	.build/mlserver/bin/pip install --quiet --disable-pip-version-check mlserver==1.7.1
	touch $@

# Its Python stub runs under Debian's own Python. Where it cannot be installed, its tests say so.
.build/triton/.tried: | $(BIN)/python
	mkdir -p .build/triton
	-/usr/bin/python3.11 -m venv --without-pip .build/triton && $(BIN)/python -m pip --python .build/triton/bin/python \
	  install --quiet --disable-pip-version-check nvidia-pytriton==0.7.0
	touch $@

clean: ## Remove what was built, trained and measured (the environment stays)
	rm -rf .build .demo bench-results .mypy_cache .ruff_cache .pytest_cache
