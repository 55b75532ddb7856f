"""A model runs in the fastest precision that answers as float32 does."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from gpu_worker.networks.network import Floats, softmax
from gpu_worker.networks.precision import PRECISIONS, Precision, Read, Verdict, chosen, compared, pictures

REFERENCE = softmax(np.random.default_rng(1).normal(0, 3, (64, 5)).astype(np.float32))


def read(scores: Floats = REFERENCE, features: Floats | None = None) -> Read:
    return [(scores, False)] if features is None else [(scores, False), (features, True)]


def runs(errors: dict[Precision, float], ran: list[Precision] | None = None) -> Callable[[Precision], Read]:
    """Answers that are off by so much in one class of one row."""

    def run(precision: Precision) -> Read:
        if ran is not None:
            ran.append(precision)
        found = REFERENCE.copy()
        found[3, 2] += errors[precision]
        return read(found)

    return run


def test_the_fastest_that_is_good_is_chosen_and_slower_ones_are_not_tried() -> None:
    ran: list[Precision] = []
    verdict, refused = chosen(PRECISIONS, read(), runs({"float16": 0.5, "bfloat16": 0.004}, ran))
    assert (verdict.precision, ran) == ("bfloat16", ["float16", "bfloat16"])
    assert verdict.difference == pytest.approx(0.004, abs=1e-5)
    assert [one.precision for one in refused] == ["float16"]
    assert str(verdict) == "bfloat16 (agreement 1.0000, largest difference 0.0040)"


def test_where_none_is_good_it_is_float32() -> None:
    errors: dict[Precision, float] = {"float16": 0.5, "bfloat16": 0.5, "tf32": 0.02}
    verdict, refused = chosen(PRECISIONS, read(), runs(errors))
    assert (verdict, len(refused), str(verdict)) == (Verdict("float32"), 3, "float32")


def test_a_precision_that_a_layer_lacks_or_that_overflows_is_ruled_out() -> None:
    def run(precision: Precision) -> Read:
        if precision == "float16":
            return read(np.full_like(REFERENCE, np.nan))
        if precision == "bfloat16":
            raise RuntimeError('"fft" not implemented for BFloat16')
        return read()

    verdict, refused = chosen(PRECISIONS, read(), run)
    assert verdict == Verdict("tf32", 1.0, 0.0)
    assert [one.is_good for one in refused] == [False, False]


def test_all_that_may_be_read_must_be_good_and_the_worst_of_it_is_said() -> None:
    features = np.array([[100.0, -50.0]], np.float32)

    def run(precision: Precision) -> Read:
        return read(REFERENCE, features + {"float16": 5.0, "bfloat16": 0.5}[precision])

    verdict, refused = chosen(PRECISIONS, read(REFERENCE, features), run)
    assert verdict.precision == "bfloat16"
    assert verdict.difference == pytest.approx(0.005)
    assert [one.difference for one in refused] == [pytest.approx(0.05)]


def test_a_verdict_is_kept_in_a_file() -> None:
    verdict = Verdict("bfloat16", 1.0, 0.004)
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict
    for wrong in (["float8", 1.0, 0.0], [], None, "float16"):
        with pytest.raises(ValueError, match=r"verdict|not known"):
            Verdict.from_json(wrong)  # type: ignore[arg-type]  # as a spoilt file has it


def test_rows_that_are_nearly_a_draw_may_go_either_way_and_others_not() -> None:
    reference = np.array([[0.501, 0.499], [0.9, 0.1]], np.float32)
    assert compared("float16", reference, np.array([[0.499, 0.501], [0.9, 0.1]], np.float32)).is_good
    turned = compared("float16", reference, np.array([[0.501, 0.499], [0.4, 0.6]], np.float32))
    assert (turned.agreement, turned.is_good) == (0.0, False)


def test_features_are_compared_by_their_size() -> None:
    reference = np.array([[100.0, -50.0]], np.float32)
    assert compared("float16", reference, reference + 0.5, features=True).is_good
    assert not compared("float16", reference, reference + 5, features=True).is_good


def test_one_class_alone_can_be_compared_too() -> None:
    assert compared("tf32", np.ones((4, 1), np.float32), np.ones((4, 1), np.float32)).is_good


def test_the_pictures_are_the_same_every_time_and_not_all_noise() -> None:
    once, again = pictures(20, 33), pictures(20, 33)
    assert once.shape == (64, 20, 33, 3)
    assert (once == again).all()
    assert (once[40, 0, 0] == once[40, 1, 1]).all(), "a patch"
