"""The foremost few are those that looking at all would find."""

from __future__ import annotations

from random import Random

import pytest

from server.placement.ranks import Foremost
from server.placement.succession import Succession


@pytest.mark.parametrize("seed", range(3))
def test_the_foremost_are_found_without_looking_at_all(seed: int) -> None:
    random = Random(seed)
    scores = {f"m{number}": random.random() for number in range(300)}
    foremost = Foremost()
    for key, score in scores.items():
        foremost.put(key, score)
    for turn in range(500):
        key = random.choice([*scores])
        what = random.random()
        if what < 0.8:
            scores[key] += random.random() / 10
            foremost.put(key, scores[key])
        elif what < 0.9:
            del scores[key]
            foremost.drop(key)
        else:
            scores[f"n{turn}"] = random.random()
            foremost.put(f"n{turn}", scores[f"n{turn}"])
        if foremost.is_short:
            foremost.refill(scores.items())
        listed = foremost.keys()
        assert len(listed) <= 64
        least = min(scores[each] for each in listed)
        assert all(score <= least for each, score in scores.items() if each not in listed)


@pytest.mark.parametrize("seed", range(3))
def test_the_last_are_found_while_scores_rise(seed: int) -> None:
    random = Random(seed)
    scores = {f"m{number}": random.random() for number in range(300)}
    last = Foremost()
    for key, score in scores.items():
        last.put(key, -score)
    for _ in range(500):
        key = random.choice([*scores])
        scores[key] += random.random() / 10
        if key in last:
            last.put(key, -scores[key])
        if last.is_short:
            last.refill((each, -score) for each, score in scores.items())
        listed = last.keys()
        most = max(scores[each] for each in listed)
        assert all(score >= most for each, score in scores.items() if each not in listed)


def test_who_comes_next_is_learned_from_changes_alone() -> None:
    succession = Succession()
    now_s = 0.0
    for turn in range(60):
        for _ in range(3):  # a clump, which says nothing of what comes next
            succession.came(now_s, ("abc"[turn % 3],), 2)
        now_s += 0.5
    visits = succession.visits()
    assert visits.next["a",][0] == ("b",)
    assert visits.next["a",][1] > 0.95
    assert visits.rows["a",] == pytest.approx(6)
    assert visits.gap_s == pytest.approx(0.5)
    assert visits.last == ("c",)


def test_a_group_has_few_successors_however_many_come_after_it() -> None:
    succession = Succession()
    for turn in range(500):
        succession.came(turn, ("a",), 1)
        succession.came(turn + 0.5, (f"b{turn}",), 1)
    assert len(succession._after["a",]) < 15
    assert succession.visits().next["a",][1] == pytest.approx(0.2)
