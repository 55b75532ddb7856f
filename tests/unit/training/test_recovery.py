"""Masters and workers die at every message and at every write; the study comes out whole."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from optuna.storages import InMemoryStorage

from server.training.studies.journal import open_journal
from server.training.studies.messages import Assignment
from server.training.studies.study import Master
from tests.unit.training.simulation import ParameterStore, Worker, inputs, run, spec_of

ROOT = Path(__file__).parents[3]


class Killed(Exception):
    """The process is gone."""


class MortalStorage(InMemoryStorage):
    """Keeps what was written; the process that writes for the n-th time dies before or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.dies_at: int | None = None
        self.dies_after_the_write = False

    def _write(self, name, *args, **kwargs):
        self.writes += 1
        dies = self.writes == self.dies_at
        if dies and not self.dies_after_the_write:
            raise Killed
        result = getattr(InMemoryStorage, name)(self, *args, **kwargs)
        if dies:
            raise Killed
        return result

    def create_new_trial(self, *args, **kwargs):
        return self._write("create_new_trial", *args, **kwargs)

    def set_trial_user_attr(self, *args, **kwargs):
        return self._write("set_trial_user_attr", *args, **kwargs)

    def set_trial_intermediate_value(self, *args, **kwargs):
        return self._write("set_trial_intermediate_value", *args, **kwargs)

    def set_trial_state_values(self, *args, **kwargs):
        return self._write("set_trial_state_values", *args, **kwargs)


def whole(master: Master, budget: int) -> None:
    """What must hold of every study that ended."""
    trials = master.trials()
    progress = master.progress()
    assert progress.epochs_used == sum(trial.charged for trial in trials) == budget
    assert all(len(trial.scores) <= trial.charged for trial in trials)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert not any(trial.worker for trial in trials)
    stored = [kept for trial in trials for kept in trial.checkpoints]
    assert progress.best_score == max(kept.score for kept in stored)


@pytest.mark.parametrize("policy", ["study", "costudy", "asha", "branch"])
def test_a_master_replaced_after_every_message_runs_the_same_study(policy):
    spec = spec_of(policy, advisor="tpe", budget_epochs=70)
    steady = Master(spec, InMemoryStorage())
    run(steady, 2)

    class Reborn:
        """A new master for each message; nothing but the storage goes from one to the next."""

        storage = InMemoryStorage()

        def __getattr__(self, name):
            return getattr(Master(spec, self.storage), name)

    reborn = Reborn()
    run(reborn, 2)  # type: ignore[arg-type]
    assert reborn.trials() == steady.trials()
    assert reborn.progress() == steady.progress()


@pytest.mark.parametrize("policy", ["study", "costudy", "asha", "branch"])
@pytest.mark.parametrize("after", [False, True])
def test_a_master_killed_at_any_write_leaves_a_study_that_ends_whole(policy, after):
    budget = 25
    spec = spec_of(policy, budget_epochs=budget, lease_s=5, max_epochs=9)
    counted = MortalStorage()
    run(Master(spec, counted))
    for place in range(1, counted.writes + 1):
        storage, store = MortalStorage(), ParameterStore()
        storage.dies_at, storage.dies_after_the_write = place, after
        with pytest.raises(Killed):
            run_from(Master(spec, storage), "before", store, 0.0)
        finished = [trial for trial in Master(spec, storage).trials() if trial.state == "finished"]
        again = Master(spec, storage)
        # The worker of before is gone with its master; its lease runs out.
        again.sweep(100.0)
        run_from(again, "after", store, 100.0)
        whole(again, budget)
        # What was finished stays as it was, and Optuna was told of it.
        assert [again.trials()[trial.number] for trial in finished] == finished
        for name in ("s", "s/warm"):
            for shown in storage.get_all_trials(storage.get_study_id_from_name(name)):
                trial = json.loads(shown.user_attrs["ml_udf:trial"])
                assert shown.state.is_finished() == (trial["state"] in ("finished", "failed"))


def run_from(master: Master, name: str, store: ParameterStore, now_s: float) -> Worker:
    worker = Worker(name, store)
    while worker.given is not None or worker.ask(master, now_s):
        worker.step(master, now_s)
    return worker


@pytest.mark.parametrize("policy", ["study", "costudy", "asha", "branch"])
def test_a_worker_killed_at_any_message_leaves_its_inputs_to_another(policy):
    budget = 25
    spec = spec_of(policy, budget_epochs=budget, lease_s=5, max_epochs=9)
    for messages in range(1, 24):
        master, store = Master(spec, InMemoryStorage()), ParameterStore()
        dying = Worker("dying", store)
        for _ in range(messages):
            if dying.given is not None:
                dying.step(master, 0.0)
            elif not dying.ask(master, 0.0):
                break
        best_before = master.progress().best_score or 0.0
        orphan = dying.given
        other = run_from(master, "other", store, 10.0)
        whole(master, budget)
        assert (master.progress().best_score or 0.0) >= best_before
        if orphan is not None and other.seen:
            assert inputs(other.seen[0]) == inputs(orphan)
            assert other.seen[0].attempt == orphan.attempt + 1


def test_a_retry_that_is_trained_to_the_end_has_the_weights_of_a_trial_that_nobody_killed():
    spec = spec_of("branch", budget_epochs=200, seed=5)
    steady, store = Master(spec, InMemoryStorage()), ParameterStore()
    run(steady, store=store)
    master, after = Master(spec, InMemoryStorage()), ParameterStore()
    dying = Worker("dying", after)
    assert dying.ask(master, 0.0)
    run_from(master, "other", after, 100.0)
    known = {trial.number: {kept.digest for kept in trial.checkpoints} for trial in steady.trials()}
    cold = [trial for trial in master.trials() if not trial.warm and trial.number < 10]
    assert cold[0].attempt >= 1
    for trial in cold:
        assert {kept.digest for kept in trial.checkpoints if kept.epoch == 1} <= known[trial.number]


def test_a_line_that_was_half_written_into_the_journal_is_cut_off(tmp_path):
    journal = tmp_path / "journal"
    run(Master(spec_of(budget_epochs=10), open_journal(str(journal))))
    with journal.open("a") as file:
        file.write('{"op_code": 8, "worker_id": "x", "tri')
    for budget in (20, 30):
        master = Master(spec_of(budget_epochs=budget), open_journal(str(journal)))
        assert master.progress().epochs_used == budget - 10
        run(master)
        whole(master, budget)


CHILD = """
import sys
from server.training.studies.journal import open_journal
from server.training.studies.study import Master
from tests.unit.training.simulation import ParameterStore, Worker, spec_of
master = Master(spec_of("costudy", budget_epochs=400, lease_s=5), open_journal(sys.argv[1]))
worker = Worker("child", ParameterStore())
while worker.given is not None or worker.ask(master, 0.0):
    worker.step(master, 0.0)
    print(worker.epoch, flush=True)
"""


def test_a_master_process_killed_with_kill_9_is_gone_on_with_from_its_journal(tmp_path):
    journal = str(tmp_path / "journal")
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, journal], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert child.stdout is not None
    for _ in range(40):
        assert child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    spec = spec_of("costudy", budget_epochs=90, lease_s=5)
    master = Master(spec, open_journal(journal))
    used = master.progress().epochs_used
    assert 40 <= used < 90
    held = [trial for trial in master.trials() if trial.worker == "child"]
    best = master.progress().best_score
    given = master.request("heir", 1e6)
    assert isinstance(given, Assignment)
    if held:
        assert inputs(given) == inputs(held[0].assignment())
    store = ParameterStore({kept.digest: kept.score for t in master.trials() for kept in t.checkpoints})
    run_from(master, "heir", store, 1e6)
    whole(master, 90)
    assert best is None or (master.progress().best_score or 0.0) >= best


class Files(dict[str, float]):
    """A parameter store's scores, which outlive the process that put them."""

    def __init__(self, folder: Path) -> None:
        super().__init__((path.name, float(path.read_text())) for path in folder.iterdir())
        self._folder = folder

    def __setitem__(self, digest: str, score: float) -> None:
        (self._folder / digest).write_text(repr(score))
        super().__setitem__(digest, score)


class Doomed:
    """A master whose process is killed with `kill -9` once it has handled so many messages, unanswered."""

    def __init__(self, master: Master, messages: int) -> None:
        self._master = master
        self._left = messages

    def __getattr__(self, name):
        def handled(*arguments):
            answer = getattr(self._master, name)(*arguments)
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return handled


@pytest.mark.parametrize("policy", ["study", "costudy", "asha", "branch"])
def test_a_process_killed_with_kill_9_at_any_message_leaves_a_study_that_ends_whole(tmp_path, policy):
    """Master and worker in one process, which is killed for good, journal, lock and all."""
    budget = 12
    spec = spec_of(policy, budget_epochs=budget, lease_s=5, max_epochs=9)
    for messages in itertools.count(1):
        folder, journal = tmp_path / f"store-{messages}", str(tmp_path / f"journal-{messages}")
        folder.mkdir()
        child = os.fork()
        if not child:
            try:
                doomed = Doomed(Master(spec, open_journal(journal)), messages)
                run_from(doomed, "before", ParameterStore(Files(folder)), 0.0)  # type: ignore[arg-type]
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        master = Master(spec, open_journal(journal))
        before = master.trials()
        finished = [trial for trial in before if trial.state == "finished"]
        best = master.progress().best_score or 0.0
        master.sweep(100.0)
        after = run_from(master, "after", ParameterStore(Files(folder)), 100.0)
        whole(master, budget)
        assert [master.trials()[trial.number] for trial in finished] == finished, "none is finished twice"
        assert (master.progress().best_score or 0.0) >= best
        for lost in (trial for trial in before if trial.state == "running"):
            retried = next((given for given in after.seen if given.trial == lost.number), None)
            assert retried is None or inputs(retried) == inputs(lost.assignment())
        if not os.WIFSIGNALED(status):
            assert messages > budget
            return
