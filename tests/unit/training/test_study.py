"""The master's messages: assignments, verdicts, leases, budgets, conditional puts, and opening again."""

from __future__ import annotations

import math

import pytest
from optuna.storages import InMemoryStorage

from server.training.studies.hyperspace import HyperSpace
from server.training.studies.journal import open_journal
from server.training.studies.ledger import as_begun
from server.training.studies.messages import NO_LIMIT, Assignment, NoWorkYet, StudyOver, StudySpec, Verdict
from server.training.studies.study import Master
from server.training.studies.trial import Checkpoint
from tests.unit.training.simulation import inputs, run, small_space, spec_of


def master_of(policy="study", storage=None, **fields) -> Master:
    return Master(spec_of(policy, **fields), storage or InMemoryStorage())


def assigned(master: Master, worker="w", now_s=0.0) -> Assignment:
    given = master.request(worker, now_s)
    assert isinstance(given, Assignment)
    return given


def test_a_trial_runs_to_its_longest_and_stops():
    master = master_of(max_epochs=3)
    given = assigned(master)
    verdicts = [master.report("w", given.trial, epoch, epoch / 10, 0.0) for epoch in (1, 2, 3)]
    assert verdicts == [Verdict.CONTINUE, Verdict.CONTINUE, Verdict.STOP]
    master.finish("w", given.trial, 0.3, 0.0, "weights")
    progress = master.progress()
    assert (progress.best_score, progress.best_trial, progress.best_checkpoint) == (0.3, 0, "weights")


def test_a_study_of_errors_keeps_the_smallest_and_says_it_in_its_unit():
    master = master_of(max_epochs=3, metric="rmse")
    given = assigned(master)
    for epoch, rmse in enumerate((9.0, 4.0, 5.0), 1):
        master.report("w", given.trial, epoch, -rmse, 0.0)
    master.finish("w", given.trial, -4.0, 0.0, "weights")
    progress = master.progress()
    assert (progress.metric, progress.best_score) == ("rmse", 4.0)
    assert (progress.trials[0].score, progress.trials[0].best_score) == (5.0, 4.0)


def test_a_budget_of_time_ends_a_study_when_its_epochs_have_taken_it():
    master = master_of(budget_epochs=NO_LIMIT, budget_s=10.0, max_epochs=9)
    given = assigned(master)
    verdicts = [master.report("w", given.trial, epoch, epoch / 10, 0.0, took_s=4.0) for epoch in (1, 2, 3)]
    assert verdicts == [Verdict.CONTINUE, Verdict.CONTINUE, Verdict.STOP]
    master.finish("w", given.trial, 0.3, 0.0, "weights")
    over = master.request("w", 0.0)
    assert isinstance(over, StudyOver)
    assert over.reason == "the budget of time is used up"
    assert (master.progress().seconds_used, master.progress().epochs_budget) == (12.0, None)


def test_a_budget_of_trials_trains_each_of_them_to_its_end():
    master = master_of(budget_epochs=NO_LIMIT, max_trials=3, max_epochs=2)
    run(master)
    trials = master.trials()
    assert [len(trial.scores) for trial in trials] == [2, 2, 2]
    assert isinstance(master.request("w", 1e9), StudyOver)


def test_a_study_whose_score_cannot_be_better_stops():
    master = master_of(stale_trials=8, max_epochs=1)
    given = assigned(master)
    master.report("w", given.trial, 1, 1.0, 0.0)
    master.finish("w", given.trial, 1.0, 0.0, "weights")
    over = master.request("w", 0.0)
    assert isinstance(over, StudyOver)
    assert over.reason == "accuracy cannot be better"


def test_a_study_whose_trials_bring_no_gain_stops():
    master = master_of(stale_trials=3, max_epochs=1, budget_epochs=50)
    for number in range(4):
        given = assigned(master)
        score = 0.9 if number == 0 else 0.8
        master.report("w", given.trial, 1, score, 0.0)
        master.finish("w", given.trial, score, 0.0, f"weights {number}")
    over = master.request("w", 0.0)
    assert isinstance(over, StudyOver)
    assert over.reason == "3 trials in a row have brought no gain"


def test_a_study_from_before_scores_had_a_metric_goes_on_by_accuracy():
    storage = InMemoryStorage()
    Master(spec_of(), storage)
    study = storage.get_study_id_from_name("s")
    stored = storage.get_study_user_attrs(study)["ml_udf:spec"]
    storage.set_study_user_attr(
        study, "ml_udf:spec", {name: value for name, value in stored.items() if name != "metric"}
    )
    again = Master(as_begun(spec_of(), storage), storage)
    assert again.spec.metric == "accuracy"
    assigned(again)


def test_a_trial_that_has_converged_ends_and_its_report_may_be_said_twice():
    master = master_of(max_epochs=9)
    given = assigned(master)
    assert master.report("w", given.trial, 1, 0.5, 0.0) is Verdict.CONTINUE
    told = [master.report("w", given.trial, 2, 0.6, 0.0, converged=True) for _ in range(2)]
    assert told == [Verdict.STOP, Verdict.STOP]
    master.finish("w", given.trial, 0.6, 0.0, "weights")
    assert master.progress().epochs_used == 2
    assert assigned(master).trial == 1


def test_a_plateau_ends_a_trial_after_its_patience():
    master = master_of(patience=2, min_gain=0.01, max_epochs=9)
    given = assigned(master)
    verdicts = [master.report("w", given.trial, n, s, 0.0) for n, s in enumerate((0.5, 0.6, 0.605, 0.55), 1)]
    assert verdicts == [Verdict.CONTINUE] * 3 + [Verdict.STOP]


@pytest.mark.parametrize("policy", ["study", "costudy", "asha", "branch"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_study_trains_its_budget_to_the_epoch(policy, workers):
    master = master_of(policy, budget_epochs=50)
    run(master, workers)
    progress = master.progress()
    assert progress.epochs_used == 50
    assert sum(trial.epochs for trial in progress.trials) == 50
    assert progress.best_checkpoint is not None
    assert not any(trial.worker for trial in progress.trials)


@pytest.mark.parametrize("policy", ["study", "costudy", "asha", "branch"])
def test_a_study_ends_after_its_trials_too(policy):
    master = master_of(policy, budget_epochs=1000, max_trials=6)
    run(master, 2)
    assert len(master.trials()) == 6
    assert master.request("w", 1e9) == StudyOver("there are no more trials to run")


def test_a_worker_waits_while_all_of_a_grid_is_under_way_and_nothing_can_be_branched_from():
    space = HyperSpace()
    space.add_categorical_knob("kernel", "string", ["linear", "poly"])
    master = master_of("branch", space=space, advisor="grid")
    assert {assigned(master, worker).knobs["kernel"] for worker in ("a", "b")} == {"linear", "poly"}
    assert master.request("c", 0.0) == NoWorkYet()


def test_a_worker_waits_while_another_holds_the_last_epoch():
    master = master_of(budget_epochs=1)
    given = assigned(master, "one")
    assert master.request("two", 0.0) == NoWorkYet()
    assert master.report("one", given.trial, 1, 0.5, 0.0) is Verdict.STOP
    master.finish("one", given.trial, 0.5, 0.0, None)
    assert isinstance(master.request("two", 0.0), StudyOver)


def test_a_report_sent_twice_counts_once_and_has_the_same_answer():
    master = master_of(patience=1, max_epochs=9)
    given = assigned(master)
    assert master.report("w", given.trial, 1, 0.5, 0.0) is Verdict.CONTINUE
    assert master.report("w", given.trial, 1, 0.5, 0.0) is Verdict.CONTINUE
    assert master.report("w", given.trial, 2, 0.4, 0.0) is Verdict.STOP
    assert master.report("w", given.trial, 2, 0.4, 0.0) is Verdict.STOP
    assert master.progress().epochs_used == 2


def test_a_report_that_skips_an_epoch_is_refused():
    master = master_of()
    given = assigned(master)
    with pytest.raises(ValueError, match="epoch 2 was reported after epoch 0"):
        master.report("w", given.trial, 2, 0.5, 0.0)


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_no_number_ends_the_trial_and_the_study_goes_on(score):
    master = master_of(max_epochs=3)
    given = assigned(master)
    assert master.report("w", given.trial, 1, score, 0.0) is Verdict.DROP
    assert master.trials()[0].state == "failed"
    assert assigned(master).trial == 1
    run(master)
    assert master.progress().epochs_used == 60


def test_a_silent_workers_trial_goes_to_another_with_the_same_inputs_and_is_charged():
    master = master_of(lease_s=10, max_epochs=5)
    first = assigned(master, "dead", 0.0)
    master.report("dead", first.trial, 1, 0.5, 1.0)
    assert isinstance(master.request("other", 10.0), Assignment)  # the lease was renewed at 1 s
    again = assigned(master, "third", 12.0)
    assert inputs(again) == inputs(first)
    assert again.attempt == 2
    # Epoch 1, and the epoch that nobody reported.
    assert master.trials()[first.trial].charged == 2


def test_what_a_late_worker_says_changes_nothing():
    master = master_of("costudy", lease_s=10)
    given = assigned(master, "late", 0.0)
    assert assigned(master, "other", 20.0).trial == given.trial
    before = master.trials()
    assert master.report("late", given.trial, 1, 0.9, 21.0) is Verdict.DROP
    assert not master.stored("late", given.trial, 1, 0.9, "late weights")
    master.finish("late", given.trial, 0.9, 21.0, "late weights")
    master.fail("late", given.trial, "late", 21.0)
    assert not master.beat("late", given.trial, 21.0)
    assert master.trials() == before


def test_a_beat_keeps_the_lease_through_a_long_epoch():
    master = master_of(lease_s=10)
    given = assigned(master, now_s=0.0)
    assert master.beat("w", given.trial, 9.0)
    assert master.sweep(18.0) == []
    assert master.sweep(19.5) == [given.trial]


def test_a_trial_that_kills_its_workers_is_given_up():
    master = master_of(max_attempts=3, lease_s=1)
    for now_s in (0, 10, 20):
        assert assigned(master, f"w{now_s}", now_s).trial == 0
    assert assigned(master, "w30", 30.0).trial == 1
    assert master.trials()[0].state == "failed"
    assert "silent for 1 s" in master.trials()[0].reason


@pytest.mark.parametrize("policy", ["study", "costudy", "asha", "branch"])
def test_a_study_whose_budget_was_lost_to_crashes_still_ends_with_a_model(policy):
    master = master_of(policy, budget_epochs=1, max_epochs=5)
    first = assigned(master, "dead")
    master.fail("dead", first.trial, "the server stopped", 0.0)
    again = assigned(master, "one")
    assert inputs(again) == inputs(first)
    assert master.request("two", 0.0) == NoWorkYet(), "one trial is enough"
    assert master.report("one", again.trial, 1, 0.5, 0.0) is Verdict.STOP
    master.finish("one", again.trial, 0.5, 0.0, "weights")
    assert master.progress().best_checkpoint == "weights"
    assert master.request("one", 0.0) == StudyOver("the budget of epochs is used up")


def test_a_study_whose_trials_all_kill_their_workers_ends_without_one():
    master = master_of(budget_epochs=2, max_attempts=3)
    for reason in ("killed", "killed", "out of memory"):
        master.fail("w", assigned(master).trial, reason, 0.0)
    assert master.request("w", 0.0) == StudyOver("the budget of epochs is used up")
    assert master.trials()[0].state == "failed"


def test_a_worker_that_asks_anew_has_lost_what_it_was_on():
    master = master_of()
    first = assigned(master)
    master.report("w", first.trial, 1, 0.5, 0.0)
    again = assigned(master)
    assert (inputs(again), again.attempt) == (inputs(first), 2)


def test_finish_is_said_twice_and_counts_once():
    master = master_of(max_epochs=1)
    given = assigned(master)
    master.report("w", given.trial, 1, 0.5, 0.0)
    master.finish("w", given.trial, 0.5, 0.0, "a")
    before = master.trials()
    master.finish("w", given.trial, 0.9, 0.0, "b")
    assert master.trials() == before


def test_a_put_counts_only_while_it_is_better_by_delta_than_what_came_first():
    master = master_of("costudy", delta=0.05)
    one, two = assigned(master, "one"), assigned(master, "two")
    assert master.report("one", one.trial, 1, 0.50, 0.0) is Verdict.PUT
    assert master.report("two", two.trial, 1, 0.52, 0.0) is Verdict.PUT
    assert master.stored("two", two.trial, 1, 0.52, "of two")
    assert not master.stored("one", one.trial, 1, 0.50, "of one")
    assert master.stored("two", two.trial, 1, 0.52, "of two")  # said again, still true
    assert master.report("one", one.trial, 2, 0.56, 0.0) is Verdict.CONTINUE
    assert master.report("one", one.trial, 3, 0.58, 0.0) is Verdict.PUT
    assert master.progress().best_checkpoint == "of two"


@pytest.mark.parametrize("policy", ["study", "costudy", "asha", "branch"])
def test_a_study_opened_again_is_the_same_study(tmp_path, policy):
    place = str(tmp_path / "journal")
    master = Master(spec_of(policy, budget_epochs=15), open_journal(place))
    run(master, 2)
    again = Master(spec_of(policy, budget_epochs=15), open_journal(place))
    assert again.trials() == master.trials()
    assert again.progress() == master.progress()


def test_a_finished_study_can_be_extended_but_not_changed():
    storage = InMemoryStorage()
    run(Master(spec_of(budget_epochs=20), storage))
    longer = Master(spec_of(budget_epochs=35), storage)
    run(longer)
    assert longer.progress().epochs_used == 35
    for change in ({"patience": 9}, {"seed": 1}, {"snapshot": "other"}):
        with pytest.raises(ValueError, match=f"exists with another {next(iter(change))}"):
            Master(spec_of(budget_epochs=35, **change), storage)


def test_a_study_goes_on_as_it_was_begun_whatever_the_next_release_would_begin():
    storage = InMemoryStorage()
    begun = spec_of(budget_epochs=20, cold_share=0.65)
    assert as_begun(begun, storage) == begun
    run(Master(begun, storage))
    other = HyperSpace()
    other.add_range_knob("another", "float", 0.0, 1.0)
    now = spec_of(budget_epochs=35, space=other, patience=9)
    found = as_begun(now, storage)
    assert (found.budget_epochs, found.cold_share, found.patience) == (35, 0.65, begun.patience)
    assert found.space.as_json() == begun.space.as_json()
    longer = Master(found, storage)
    run(longer)
    assert longer.progress().epochs_used == 35


def test_a_setting_that_came_or_went_since_a_study_was_begun_does_not_make_it_another():
    storage = InMemoryStorage()
    run(Master(spec_of(budget_epochs=20), storage))
    study = storage.get_study_id_from_name("s")
    old = storage.get_study_user_attrs(study)["ml_udf:spec"]
    older = {name: old[name] for name in old if name != "explore"} | {"gone_since": 3}
    storage.set_study_user_attr(study, "ml_udf:spec", older)
    assert Master(as_begun(spec_of(budget_epochs=20), storage), storage).progress().epochs_used == 20


def test_optuna_sees_cold_and_warm_trials_apart_with_their_scores():
    storage = InMemoryStorage()
    master = Master(spec_of("costudy", budget_epochs=120, alpha=0.5), storage)
    run(master)
    sizes = []
    for name, warm in (("s", False), ("s/warm", True)):
        shown = storage.get_all_trials(storage.get_study_id_from_name(name))
        known = [trial for trial in master.trials() if trial.warm == warm]
        sizes.append(len(shown))
        assert [trial.params for trial in shown] == [dict(trial.draws) for trial in known]
        assert [list(trial.intermediate_values.values()) for trial in shown] == [
            list(trial.scores) for trial in known
        ]
        assert [trial.value for trial in shown] == [trial.best_score for trial in known]
    assert min(sizes) > 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"policy": "best"}, "policy must be one of study, costudy, asha, branch"),
        ({"advisor": "oracle"}, "advisor must be one of"),
        ({"budget_epochs": 0}, "budget_epochs must be at least 1"),
        ({"alpha": 1.5}, "alpha must be from 0 to 1"),
        ({"max_trials": 0}, "max_trials must be at least 1"),
        ({"lease_s": 0}, "lease_s must be above 0"),
        ({"budget": 3}, "the study is not well formed"),
    ],
)
def test_a_bad_study_is_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        StudySpec.from_json({"name": "s", "space": small_space().as_json()} | fields)


@pytest.mark.parametrize("policy", ["study", "costudy", "asha", "branch"])
def test_a_trial_that_was_suspended_goes_on_where_it_stood_on_any_worker(policy):
    master = master_of(policy, max_epochs=9, patience=5, budget_epochs=100)
    given = assigned(master, "one")
    while given.epochs == 1:  # of branch's first rung
        assert master.report("one", given.trial, 1, given.trial / 10, 0.0) is Verdict.PAUSE
        master.stored("one", given.trial, 1, given.trial / 10, f"rung {given.trial}")
        given = assigned(master, "one")
    epochs = given.start_epoch + 1
    master.report("one", given.trial, epochs, epochs / 10, 0.0)
    before = master.progress()
    assert master.suspend("one", given.trial, [Checkpoint(epochs, epochs / 10, "suspended")], "paused")
    again = assigned(master, "two")
    assert again == Assignment(
        given.trial,
        given.knobs,
        given.seed,
        "suspended",
        epochs,
        given.epochs - (epochs - given.start_epoch),
        given.attempt,
    )
    assert master.progress().epochs_used == before.epochs_used, "no epoch was lost"
    assert master.report("two", given.trial, epochs + 1, 0.9, 0.0) is not Verdict.DROP


def test_a_trial_that_is_not_a_workers_any_more_cannot_be_suspended_by_it():
    master = master_of(max_epochs=9, lease_s=10)
    given = assigned(master, "one")
    master.report("one", given.trial, 1, 0.1, 0.0)
    master.sweep(1e6)
    assert not master.suspend("one", given.trial, [Checkpoint(1, 0.1, "late")], "paused")
    assert not master.suspend("one", given.trial, [Checkpoint(7, 0.1, "never")], "paused")


def test_giving_a_trial_back_is_no_failed_attempt():
    master = master_of(max_epochs=9, max_attempts=2)
    for _ in range(5):
        given = assigned(master)
        assert given.attempt == 1
        master.report("w", given.trial, 1, 0.1, 0.0)
        master.release("w", given.trial, "paused")
    assert master.progress().epochs_used == 0, "what begins again is charged once"
