"""No batch waits for a collection of what a worker has imported, and no model stays for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gpu_worker.wire.protocol import Load, Loaded
from tests.unit.gpu_worker.worker_process import REPOSITORY, WorkerProcess

_LEFT = 20_000  # objects that a collection of everything may look at; torch alone has ten times as many


def test_libraries_that_a_load_imports_are_left_out_of_collections_and_its_model_is_not(
    squeezenet: os.PathLike[str],
) -> None:
    code = (
        "import gc, weakref\n"
        "from gpu_worker.__main__ import spare_collections\n"
        "from gpu_worker.engine import Engine\n"
        "from gpu_worker.settings import Settings\n"
        "engine = Engine(Settings(device='cpu', threads=1), spare_collections)\n"
        f"engine.load('m', {os.fspath(squeezenet)!r})\n"
        f"assert len(gc.get_objects()) < {_LEFT}, len(gc.get_objects())\n"
        "(resident,) = engine._cache.residents()\n"
        "network = weakref.ref(resident.network)\n"
        "del resident\n"
        "engine.unload('m')\n"
        "engine._loads.settle()\n"
        "engine._loads.kept.clear()\n"
        "gc.collect()\n"
        "assert network() is None, 'the model is kept for ever'\n"
        "engine.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_worker_leaves_what_it_started_with_and_what_loads_import_out_of_collections(
    squeezenet: Path, hashing: Path, tmp_path: Path
) -> None:
    told = tmp_path / "frozen"
    (tmp_path / "sitecustomize.py").write_text(
        "import gc, os\n"
        "freeze = gc.freeze\n"
        "def told_freeze():\n"
        "    freeze()\n"
        f"    with open({os.fspath(told)!r}, 'a') as out:\n"
        "        print(gc.get_freeze_count(), file=out)\n"
        "gc.freeze = told_freeze\n"
    )
    with WorkerProcess(environment={"PYTHONPATH": os.fspath(tmp_path)}) as worker:
        for number, model in enumerate((hashing, squeezenet, squeezenet), 1):
            assert isinstance(worker.ask(Load(number, f"m{number}", os.fspath(model))), Loaded)
    at_start, with_torch = (int(line) for line in told.read_text().split())
    assert 0 < at_start < with_torch
