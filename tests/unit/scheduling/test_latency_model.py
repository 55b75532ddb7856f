"""l̂: what it starts from, what it learns, what it ignores."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.scheduling.latency_model import LatencyModel
from tests.unit.scheduling.views import affine

PROFILE_S = {rows: affine(rows) for rows in (1, 4, 8, 16, 64)}


def taught(model: LatencyModel, batches: int, scale: float = 1.0, noise: float = 0.05, seed: int = 5) -> None:
    random = Random(seed)
    for _ in range(batches):
        rows = random.choice([1, 3, 8, 17, 40, 64])
        model.observe(rows, scale * affine(rows) * random.lognormvariate(0, noise))


def test_between_profiled_sizes_it_is_linear_and_beyond_them_it_goes_on() -> None:
    model = LatencyModel({1: 0.01, 5: 0.03, 9: 0.03})
    assert model(3) == pytest.approx(0.02)
    assert model(7) == pytest.approx(0.03)
    assert LatencyModel({4: 0.01, 8: 0.02})(12) == pytest.approx(0.03)
    assert LatencyModel({4: 0.01, 8: 0.02})(1) == pytest.approx(0.01)
    assert LatencyModel({4: 0.01})(8) == pytest.approx(0.02)


def test_one_outlier_moves_it_by_less_than_a_tenth() -> None:
    model = LatencyModel(PROFILE_S)
    taught(model, 30)
    before = {rows: model(rows) for rows in (1, 8, 64)}
    model.observe(64, 100 * affine(64))
    assert all(model(rows) < 1.1 * before[rows] for rows in before)


@pytest.mark.parametrize("scale", [2.0, 0.5])
def test_a_real_change_of_speed_is_followed_within_20_batches_at_sizes_that_never_ran_too(
    scale: float,
) -> None:
    model = LatencyModel(PROFILE_S)
    taught(model, 50)
    taught(model, 20, scale, seed=6)
    for rows in (1, 8, 27, 64, 100):
        assert 0.9 < model(rows) / (scale * affine(rows)) < 1.3


@pytest.mark.parametrize(("wrong", "batches"), [(0.7, 20), (1.3, 20), (0.1, 60), (10.0, 60)])
def test_a_wrong_profile_is_forgotten(wrong: float, batches: int) -> None:
    model = LatencyModel({rows: wrong * took_s for rows, took_s in PROFILE_S.items()})
    taught(model, batches)
    assert all(0.9 < model(rows) / affine(rows) < 1.3 for rows in (1, 8, 27, 64))


def test_a_profile_of_the_wrong_shape_is_forgotten() -> None:
    model = LatencyModel({1: 0.001, 64: 0.016})
    taught(model, 150)
    assert all(0.9 < model(rows) / affine(rows) < 1.35 for rows in (1, 8, 64))


def test_a_guess_is_replaced_by_the_first_batch_of_each_size_and_larger_ones_are_worth_a_try() -> None:
    model = LatencyModel({1: 0.001, 64: 0.016}, measured=False)
    assert model(64) == pytest.approx(0.016)
    model.observe(1, 0.02)
    assert model(2) == pytest.approx(0.02)  # and not 20 times the guess
    assert model(4) == pytest.approx(0.04, rel=0.01)
    for rows in (2, 4, 8, 16, 32, 64):
        model.observe(rows, 0.020 + 0.001 * rows)
    for rows in (1, 3, 8, 20, 64):
        assert model(rows) == pytest.approx(0.020 + 0.001 * rows, rel=0.15)
    stored = LatencyModel.from_json(json.loads(json.dumps(model.to_json())))
    assert [stored(rows) for rows in range(1, 200)] == [model(rows) for rows in range(1, 200)]
    assert stored.on("cpu", "text")(64) == pytest.approx(model.on("cpu", "text")(64))


def test_after_one_large_batch_small_ones_are_guessed_by_its_measure() -> None:
    model = LatencyModel({1: 0.001, 64: 0.016}, measured=False)
    model.observe(64, 0.16)
    assert model(1) == pytest.approx(0.01)


def test_a_batch_teaches_the_size_that_is_nearest_by_ratio_and_a_new_one_where_none_is_near() -> None:
    model = LatencyModel({1: 0.01, 8: 0.02, 64: 0.1})
    for count in (60, 12, 24):  # 12 is 1.5 times 8, 24 far from both
        model.observe(count, 0.02)
    seen = {size: count for size, _, count in model.to_json()["shape"]}
    assert seen == {1: 3, 8: 4, 64: 4, 32: 2}


def test_it_is_a_high_quantile() -> None:
    model = LatencyModel(PROFILE_S)
    taught(model, 100, noise=0.1)
    random, over = Random(9), 0
    for _ in range(400):
        took_s = affine(17) * random.lognormvariate(0, 0.1)
        over += took_s <= model(17)
        model.observe(17, took_s)
    assert 0.75 < over / 400 < 0.97


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(1e-5, 10.0)), max_size=60), st.booleans())
@settings(max_examples=100, deadline=None)
def test_it_never_falls_with_the_batch_size_and_survives_being_stored(
    batches: list[tuple[int, float]], measured: bool
) -> None:
    model = LatencyModel(PROFILE_S, measured=measured)
    for rows, took_s in batches:
        model.observe(rows, took_s)
    predicted_s = [model(rows) for rows in range(1, 200)]
    assert all(low <= high * (1 + 1e-12) for low, high in pairwise(predicted_s))
    assert min(predicted_s) > 0
    stored = LatencyModel.from_json(json.loads(json.dumps(model.to_json())))
    assert [stored(rows) for rows in range(1, 200)] == predicted_s


def test_another_kind_of_device_or_rows_starts_from_what_is_known_and_learns_for_itself() -> None:
    model = LatencyModel(PROFILE_S)
    kind = model.on("cuda:0", "image")
    assert kind is model.on("cuda:0", "image")
    assert model.on("", "") is model
    assert kind(8) == pytest.approx(affine(8))
    other = model.on("other", "other")
    taught(kind, 30, 3.0)
    assert kind(8) > 2 * other(8)
    stored = LatencyModel.from_json(json.loads(json.dumps(model.to_json())))
    assert stored.on("cuda:0", "image")(8) == pytest.approx(kind(8))


@pytest.mark.parametrize("profile_s", [{}, {0: 1.0}, {1: 0.0}, {1: float("inf")}, {1: float("nan")}])
def test_a_profile_that_cannot_be_is_refused(profile_s: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="profile"):
        LatencyModel(profile_s)


@pytest.mark.parametrize(("rows", "took_s"), [(0, 1.0), (1, 0.0), (1, -1.0), (1, float("nan"))])
def test_a_batch_that_cannot_have_been_is_refused(rows: int, took_s: float) -> None:
    with pytest.raises(ValueError, match="cannot have taken"):
        LatencyModel(PROFILE_S).observe(rows, took_s)


def test_a_kind_that_is_new_starts_from_what_the_others_were_taught() -> None:
    model = LatencyModel({1: 0.001, 64: 0.016}, measured=False)
    taught(model.on("cuda:0", "image"), 30, 3.0)
    again = LatencyModel.from_json(json.loads(json.dumps(model.to_json())))
    for known in (model, again):
        kind = known.on("cpu", "image")
        assert kind(8) == pytest.approx(3 * affine(8), rel=0.1)
        assert not kind.is_known, "it is still a guess"
    taught(again.on("cuda:0", "image"), 30, 1.0)
    assert again.on("cpu", "text")(8) == pytest.approx(affine(8), rel=0.1), "a stored one goes on teaching"


@pytest.mark.parametrize(("device", "bucket"), [("cpu", ""), ("", "text")])
def test_either_of_device_and_shape_makes_a_kind_of_its_own(device: str, bucket: str) -> None:
    model = LatencyModel(PROFILE_S)
    kind = model.on(device, bucket)
    assert kind is not model
    other = model.on("other", "other")
    taught(kind, 30, 3.0)
    assert kind(8) > 2 * other(8)


@pytest.mark.parametrize("level", [70.0, -70.0, 1e300, float("nan")])
def test_what_no_device_can_be_is_not_taken_from_what_was_kept(level: float) -> None:
    model = LatencyModel({1: 0.01, 8: 0.02})
    state = model.to_json()
    assert LatencyModel.from_json(state | {"level": 7.0})(1) > 1.0
    with pytest.raises(ValueError, match="no device is so much slower or faster"):
        LatencyModel.from_json(state | {"level": level})
    with pytest.raises(ValueError, match="no device is so much slower or faster"):
        LatencyModel.from_json(state | {"kinds": {"cpu|": {**state, "shape": [[1, level, 3]]}}})
