"""The card of a model tells how fast each way to run it is, beside the original."""

from __future__ import annotations

from dataclasses import replace

from server.catalog.variants import ORIGINAL, Variant
from server.dashboard.variants_view import variant_lines

FOOD = Variant("food", 3, ORIGINAL, "torch", profile_s={"cpu": {1: 0.002, 64: 0.1}})
INT8 = replace(FOOD, name="int8", runtime="onnx", precision="int8", profile_s={"cpu": {1: 0.001, 4: 0.003}})


def test_a_line_says_how_many_times_as_fast() -> None:
    original, int8 = variant_lines([FOOD, replace(INT8, threads=2)])
    assert original.batches == ((2.0, None), None, None, (100.0, None))
    assert int8.batches == ((1.0, 2.0), (3.0, None), None, None)
    assert (original.page, int8.page) == ("", "food~int8")
    assert int8.how == "onnx, int8, 2 threads"


def test_a_refused_one_has_no_page_of_its_own() -> None:
    (line,) = variant_lines([replace(INT8, refused="it loses 0.2", profile_s={})])
    assert (line.page, line.refused, line.batches) == ("", "it loses 0.2", (None,) * 4)
