"""Which knob mattered: the one by which the scores move, and none by chance."""

from __future__ import annotations

import numpy as np

from server.training.studies.importance import LEAST_TRIALS, knob_importance


def _trials(count: int, seed: int = 0):
    random = np.random.default_rng(seed)
    for _ in range(count):
        yield (
            {
                "rate": float(10 ** random.uniform(-4, -1)),
                "idle": float(random.random()),
                "kind": str(random.choice(["a", "b"])),
                "same": 3,
            },
            random,
        )


def test_the_knob_that_moves_the_score_comes_first():
    trials = [(knobs, -abs(np.log10(knobs["rate"]) + 2.5)) for knobs, _ in _trials(40)]
    found = knob_importance(trials)
    assert next(iter(found)) == "rate"
    assert found["rate"] > 0.7
    assert found["idle"] < 0.2


def test_a_name_that_decides_explains_everything():
    trials = [(knobs, 1.0 if knobs["kind"] == "a" else 0.5) for knobs, _ in _trials(20)]
    assert knob_importance(trials)["kind"] > 0.99


def test_a_knob_that_is_the_same_in_every_trial_is_left_out():
    trials = [(knobs, random.random()) for knobs, random in _trials(20)]
    assert "same" not in knob_importance(trials)


def test_of_noise_no_knob_explains_much():
    trials = [(knobs, random.random()) for knobs, random in _trials(60)]
    assert max(knob_importance(trials).values()) < 0.2


def test_few_trials_and_equal_scores_say_nothing():
    trials = [(knobs, random.random()) for knobs, random in _trials(LEAST_TRIALS - 1)]
    assert knob_importance(trials) == {}
    assert knob_importance([(knobs, 0.5) for knobs, _ in _trials(20)]) == {}


def test_a_knob_that_some_trials_lack_is_taken_as_a_name():
    trials = [({"depth": 3} if n % 2 else {}, float(n % 2)) for n in range(10)]
    assert knob_importance(trials)["depth"] > 0.99
