"""What the pages of models say: where a model was, by whom it is used, and nothing of what is not seen."""

from __future__ import annotations

from pathlib import Path

from server.catalog.functions import Function, InputShape, ModelVersion
from server.dashboard.charts.timeline import Span
from server.dashboard.models_view import lanes_of, model_card, models_of
from server.observability.moves import Move, MoveKind
from server.placement.places import HeldModel, Place

NOW = 1_795_000_000.0


def _model(name: str, version: int = 1) -> ModelVersion:
    return ModelVersion(
        name, version, "text-classification", ("a", "b"), InputShape("text"), 0.9, Path("/models")
    )


def _place(*keys: str, worker: str = "w0") -> Place:
    held = tuple(HeldModel(key, 1000, NOW - 60, None, 0.0, 1) for key in keys)
    return Place(worker, "cpu", 10_000, 8, held, None)


def _move(at_s: float, kind: MoveKind, model: str = "food/1", **more: str) -> Move:
    return Move(NOW + at_s, "w0", model, kind, "asked", **more)  # type: ignore[arg-type]  # outcome


def test_a_model_lies_on_a_device_from_its_load_to_its_eviction():
    moves = [_move(-10, "eviction"), _move(-100, "load")]
    (lane,) = lanes_of(moves, [], ["food/1"], NOW - 200)
    assert lane.spans == (Span(NOW - 100, NOW - 10, "was here"),)
    assert [moment.kind for moment in lane.moments] == ["load", "eviction"]


def test_a_model_that_was_there_before_the_first_known_move_comes_from_before():
    (lane,) = lanes_of([_move(-10, "eviction")], [], ["food/1"], NOW - 200)
    assert lane.spans == (Span(None, NOW - 10, "was here"),)


def test_a_load_that_failed_is_a_moment_and_no_span():
    (lane,) = lanes_of([_move(-10, "load", outcome="failed")], [], ["food/1"], NOW - 200)
    assert lane.spans == ()
    assert [moment.kind for moment in lane.moments] == ["failed"]


def test_what_is_there_now_is_there_still():
    (lane,) = lanes_of([_move(-50, "load")], [_place("food/1")], ["food/1"], NOW - 200)
    assert lane.spans == (Span(NOW - 50, None, "is here"),)


def test_a_model_is_one_line_with_its_newest_version_and_its_functions():
    models = [_model("food"), _model("food", 2), _model("mood")]
    function = Function("udf_food", 3, (models[1],), "text", "mean")
    view = models_of(models, [function], [_place("food/2")], {}, [], NOW)
    food, mood = view.models
    assert (food.version, food.versions, food.functions, food.workers) == (2, 2, ("udf_food",), ("w0",))
    assert (mood.functions, mood.workers) == ((), ())


def test_a_model_that_is_not_seen_stands_in_no_line_and_no_lane():
    moves = [_move(-5, "load", "secret/1"), _move(-9, "load")]
    view = models_of([_model("food")], [], [_place("secret/1", "food/1")], {}, moves, NOW)
    assert "secret" not in repr(view)
    assert "secret" not in view.moved.chart


def test_a_card_shows_the_newest_version_first_and_says_why_one_cannot_be_asked():
    card = model_card(
        [_model("food"), _model("food", 2)], [], [], {}, [], {}, {"food/1": "its server is gone"}, {}, NOW
    )
    assert [each.version for each in card.versions] == [2, 1]
    assert [each.unavailable for each in card.versions] == ["", "its server is gone"]
