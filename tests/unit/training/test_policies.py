"""CoStudy's warm starts, ASHA's rungs and promotions, and branches."""

from __future__ import annotations

import pytest
from optuna.storages import InMemoryStorage

from server.training.studies import advisors
from server.training.studies.costudy import alpha
from server.training.studies.halving import rungs
from server.training.studies.messages import Assignment, Verdict
from server.training.studies.policy import on_plateau
from server.training.studies.study import Master
from tests.unit.training.simulation import ParameterStore, run, spec_of


def finished(policy: str, workers: int = 1, **fields) -> Master:
    master = Master(spec_of(policy, **fields), InMemoryStorage())
    run(master, workers)
    return master


def test_a_plateau_is_so_many_epochs_without_a_gain_over_all_before():
    assert not on_plateau([0.5, 0.4], 2, 0.0)
    assert on_plateau([0.5, 0.4, 0.5], 2, 0.0)
    assert not on_plateau([0.5, 0.4, 0.51], 2, 0.0)
    assert on_plateau([0.5, 0.52, 0.54], 2, 0.05)  # small gains do not count, even together with others


def test_alpha_falls_with_ended_trials_down_to_its_least():
    spec = spec_of("costudy", alpha=0.8, alpha_decay=0.5, alpha_least=0.1)
    assert [alpha(spec, ended) for ended in (0, 1, 2, 9)] == [0.8, 0.4, 0.2, 0.1]


@pytest.mark.parametrize(("share", "warm"), [(1.0, 0.0), (0.0, 1.0)])
def test_alpha_is_the_share_of_cold_starts(share, warm):
    master = finished("costudy", budget_epochs=200, alpha=share, alpha_decay=1.0, alpha_least=0.0)
    after_the_first = master.trials()[1:]
    assert len(after_the_first) > 10
    assert sum(trial.warm for trial in after_the_first) / len(after_the_first) == warm


def test_a_warm_trial_starts_from_the_best_checkpoint_of_its_time():
    master = finished("costudy", budget_epochs=300, alpha=0.3)
    trials = master.trials()
    warm = [trial for trial in trials if trial.warm]
    assert len(warm) > 5
    for trial in warm:
        before = [kept for other in trials[: trial.number] for kept in other.checkpoints]
        assert trial.origin == max(before, key=lambda kept: kept.score).digest
        assert trial.origin_trial is not None
        parent = trials[trial.origin_trial]
        assert trial.origin in {kept.digest for kept in parent.checkpoints}


def test_study_never_shares_weights():
    assert not any(trial.warm for trial in finished("study", budget_epochs=200).trials())


@pytest.mark.parametrize(
    ("longest", "eta", "expected"),
    [(27, 3, [1, 3, 9, 27]), (20, 3, [2, 7, 20]), (8, 2, [1, 2, 4, 8]), (2, 3, [2])],
)
def test_rungs_divide_the_longest_trial(longest, eta, expected):
    assert rungs(longest, eta) == expected


@pytest.mark.parametrize("advisor", ["random", "tpe"])
def test_asha_is_branch_without_its_branches(advisor):
    asha = finished("asha", budget_epochs=200, advisor=advisor)
    branch = finished("branch", budget_epochs=200, advisor=advisor, cold_share=1.0)
    assert [trial.as_json() for trial in asha.trials()] == [trial.as_json() for trial in branch.trials()]
    assert not any(trial.warm for trial in asha.trials())


def test_asha_of_few_trials_ends_when_none_may_rise():
    master = finished("asha", budget_epochs=1_000, max_trials=9)
    assert sorted(len(trial.scores) for trial in master.trials()) == [1] * 6 + [3, 3, 9]


def test_asha_promotes_the_best_third_from_each_rung():
    master = finished("asha", budget_epochs=400)
    cold = [trial for trial in master.trials() if not trial.warm]
    for rung in (1, 3, 9):
        reached = [trial for trial in cold if len(trial.scores) >= rung]
        risen = [trial for trial in reached if len(trial.scores) > rung]
        assert 0 < len(risen) <= len(reached) // 3 + 1  # one was promoted when fewer were there
        risen_mean = sum(trial.scores[rung - 1] for trial in risen) / len(risen)
        stayed = [trial.scores[rung - 1] for trial in reached if trial not in risen]
        assert risen_mean > sum(stayed) / len(stayed)


def test_a_promoted_trial_goes_on_from_its_own_checkpoint():
    master = Master(spec_of("branch"), InMemoryStorage())
    for place in range(3):
        given = master.request("w", 0.0)
        assert isinstance(given, Assignment)
        assert (given.trial, given.start_epoch, given.epochs, given.parent) == (place, 0, 1, None)
        score = (0.4, 0.6, 0.5)[place]
        assert master.report("w", place, 1, score, 0.0) is Verdict.PAUSE
        assert master.stored("w", place, 1, score, f"state of {place}")
    given = master.request("w", 0.0)
    assert isinstance(given, Assignment)
    assert (given.trial, given.start_epoch, given.epochs, given.parent) == (1, 1, 2, "state of 1")
    assert given.seed == master.trials()[1].seed
    # It pauses when it has reached the next rung, not before.
    assert master.report("w", 1, 2, 0.55, 0.0) is Verdict.CONTINUE
    assert master.report("w", 1, 3, 0.55, 0.0) is Verdict.PAUSE


def test_branches_begin_after_the_cold_share_from_the_best_with_knobs_that_a_branch_may_have():
    master = finished("branch", budget_epochs=300)
    trials = master.trials()
    branches = [trial for trial in trials if trial.warm]
    cold_epochs = sum(trial.charged for trial in trials if not trial.warm)
    assert 0.35 * 300 <= cold_epochs < 0.35 * 300 + 27
    assert branches
    for branch in branches:
        assert branch.origin_trial is not None
        parent = trials[branch.origin_trial]
        assert float(branch.knobs["learning_rate"]) <= float(parent.knobs["learning_rate"])
        assert branch.knobs["init_std"] == parent.knobs["init_std"]
        assert branch.knobs["kernel"] == parent.knobs["kernel"]
        assert branch.knobs["dropout"] != parent.knobs["dropout"]


@pytest.mark.parametrize(("explore", "least", "most"), [(0.0, 0.0, 0.0), (0.5, 0.2, 0.8), (1.0, 1.0, 1.0)])
def test_explore_is_the_share_of_branches_that_get_new_knobs(explore, least, most):
    # Without jitter, the other branches have the knobs of their parent.
    trials = finished("branch", budget_epochs=600, explore=explore, sigma=0.0).trials()
    pairs = [(trial, trials[trial.origin_trial]) for trial in trials if trial.origin_trial is not None]
    assert len(pairs) > 10
    new = [branch.knobs["dropout"] != pytest.approx(parent.knobs["dropout"]) for branch, parent in pairs]
    assert least <= sum(new) / len(new) <= most
    assert all(branch.knobs["init_std"] == parent.knobs["init_std"] for branch, parent in pairs), "fixed"


def test_the_advisor_of_cold_trials_hears_what_the_cold_ones_before_scored(monkeypatch):
    heard: list[int] = []
    advisors_own = advisors._ADVISORS["random"]

    def hear(spec, observed, random):
        heard.append(len(observed))
        return advisors_own(spec, observed, random)

    monkeypatch.setattr(advisors, "_ADVISORS", {"random": hear})
    finished("branch", budget_epochs=100, advisor="random")
    assert len(heard) > 5
    assert heard == list(range(len(heard))), "one at a time, and each ended before the next begins"


def test_a_branch_goes_on_while_it_improves_on_itself_though_it_is_behind_its_parent():
    master = Master(spec_of("branch", cold_share=0.0, patience=2, max_epochs=9), InMemoryStorage())
    first = master.request("w", 0.0)
    assert isinstance(first, Assignment)
    master.report("w", 0, 1, 0.8, 0.0)
    master.stored("w", 0, 1, 0.8, "parent")
    branch = master.request("w", 0.0)
    assert isinstance(branch, Assignment)
    assert branch.parent == "parent"
    for epoch, score in enumerate((0.5, 0.4, 0.6, 0.6, 0.7), 1):
        assert master.report("w", 1, epoch, score, 0.0) is Verdict.CONTINUE
    assert master.report("w", 1, 6, 0.81, 0.0) is Verdict.PUT
    assert master.stored("w", 1, 6, 0.81, "child")
    assert master.report("w", 1, 7, 0.79, 0.0) is Verdict.CONTINUE
    assert master.report("w", 1, 8, 0.81, 0.0) is Verdict.STOP


@pytest.mark.parametrize("policy", ["study", "costudy", "asha", "branch"])
@pytest.mark.parametrize("advisor", ["random", "tpe", "gp"])
def test_the_same_seed_and_the_same_order_of_messages_give_the_same_checkpoints(policy, advisor):
    runs = []
    for _ in range(2):
        store = ParameterStore()
        master = Master(spec_of(policy, advisor=advisor, budget_epochs=150, seed=3), InMemoryStorage())
        run(master, 2, store=store)
        runs.append((master.trials(), store.scores))
    assert runs[0] == runs[1]
    other = Master(spec_of(policy, advisor=advisor, budget_epochs=150, seed=4), InMemoryStorage())
    run(other, 2)
    assert other.trials()[0].knobs != runs[0][0][0].knobs
