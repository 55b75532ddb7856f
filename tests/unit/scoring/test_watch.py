"""What a watch decides, and what its triggers are made of, without a database."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ml_udf.client.statement import Binding
from ml_udf.errors import BadOption, InputNotFound, InputUndecodable, MlUdfError, RemoteInvalid, WorkerLost
from ml_udf.scoring import ColumnDef, Layout
from ml_udf.scoring.watch import MAX_ATTEMPTS, Definition, Watch, pause_s, retry_s
from ml_udf.scoring.watch_triggers import Triggers


def definition() -> Definition:
    return Definition(
        function="udf_food",
        signature="public.udf_food(text)",
        server="ml_udf",
        binding=Binding("food", "image", None),
        input="image_path",
        key=("id", "part"),
        condition="age > 3",
        options={"slo_ms": "20"},
    )


def watch(target: str = '"public"."foodlog"') -> Watch:
    return Watch(1, "anna", '"public"."foodlog"', target, "food", definition(), 3, "2")


def layout(condition: str | None = None, beside: bool = True, key_type: str = "integer") -> Layout:
    return Layout(
        "foodlog.food",
        '"public"."foodlog"',
        '"public"."foodlog"' if beside else '"public"."scores"',
        (ColumnDef("id", key_type, key_type, nullable=False),),
        ColumnDef("image_path", "text", "text"),
        {"value": "food", "error": "food_error", "input_hash": "h", "model_version": "v"},
        "text",
        frozenset({"changed", "version"}),
        condition,
    )


def made(its: Layout, module: bool = False) -> list[str]:
    path = "pg_catalog, public, pg_temp"
    return Triggers(7, "public", "foodlog", ['"public"."foodlog"'], its, path, module).make()


def test_a_definition_comes_back_from_the_database_as_it_was_stored() -> None:
    assert Definition.of_json(json.loads(json.dumps(definition().as_json()))) == definition()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("asked", None),
        ("key", 3),
        ("key", [3]),
        ("rescore", [[]]),
        ("batch_rows", "many"),
        ("batch_rows", True),
        ("options", []),
        ("options", {"slo_ms": 3}),
        ("condition", 1),
        ("server", None),
        ("of_a_later_release", 1),
    ],
)
def test_a_definition_that_is_none_is_an_error_with_what_to_do(name: str, wrong: Any) -> None:
    odd: Any = [name]
    for told in (definition().as_json() | {name: wrong}, {name: wrong}, odd):
        with pytest.raises(BadOption, match="cannot be read") as caught:
            Definition.of_json(told)
        assert "drop_watch" in caught.value.hint


def test_answers_go_beside_the_rows_or_into_their_own_table() -> None:
    assert (watch().request.output, watch().request.result_table) == ("food", None)
    aside = watch('"public"."scores"').request
    assert (aside.output, aside.result_table) == (None, '"public"."scores"')
    assert (aside.on_error, aside.condition) == ("null", "age > 3")


@pytest.mark.parametrize("error", [InputNotFound("x"), WorkerLost("x"), RemoteInvalid("x")])
def test_what_may_heal_is_tried_again_ever_later_and_then_no_more(error: MlUdfError) -> None:
    delays = [retry_s(error, attempts) for attempts in range(1, MAX_ATTEMPTS + 1)]
    assert delays == [10, 40, 160, 640, 2560, 3600, 3600, None]


def test_what_is_the_inputs_own_waits_for_another_input() -> None:
    assert retry_s(InputUndecodable("x"), 1) is None


def test_a_watch_rests_longer_after_each_failure_up_to_a_bound() -> None:
    assert [pause_s(failures) for failures in (1, 2, 3, 8, 9, 1000)] == [0.2, 0.4, 0.8, 25.6, 30, 30]


def test_answers_beside_rows_need_no_look_at_what_is_deleted() -> None:
    events = [" AFTER INSERT ", " AFTER UPDATE ", " AFTER DELETE ", " AFTER TRUNCATE "]
    beside, aside = "\n".join(made(layout())), "\n".join(made(layout(beside=False)))
    assert [event in beside for event in events] == [True, True, False, False]
    assert [event in aside for event in events] == [True] * 4


def test_the_module_notes_rows_by_a_condition_that_fires_no_trigger() -> None:
    triggers = [each for each in made(layout(beside=False), module=True) if each.startswith("CREATE TRIGGER")]
    assert [each.partition(" FOR EACH ")[2].partition(" EXECUTE")[0] for each in triggers] == [
        'ROW WHEN (ml_udf._note_key(7, new."id"))',
        'ROW WHEN (ml_udf._note_change(7, old."id", new."id", old."image_path", new."image_path"))',
        'ROW WHEN (ml_udf._note_key(7, old."id"))',
        "STATEMENT",
    ]


@pytest.mark.parametrize("its", [layout(condition="age > 3"), layout(key_type="date")])
def test_what_the_module_cannot_note_is_noted_by_statement(its: Layout) -> None:
    assert made(its, module=True) == made(its)


def test_only_what_depends_on_the_writers_settings_fixes_them() -> None:
    function = made(layout())[0]
    assert "SECURITY DEFINER AS" in function
    assert "SET search_path = pg_catalog, public, pg_temp" in made(layout(condition="age > 3"))[0]
    assert "SET datestyle = E'ISO'" in made(layout(key_type="date"))[0]


def test_a_condition_cannot_end_the_function_that_holds_it() -> None:
    function = made(layout(condition="name = '$$ END'' \\ ' -- no"))[0]
    assert function.count("$$ END'''' \\\\ ''") >= 2
