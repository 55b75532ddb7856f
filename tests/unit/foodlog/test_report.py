from typing import Any

from rich.console import Console

from examples.foodlog.queries import Query
from examples.foodlog.report import (
    Measured,
    Timed,
    print_accuracies,
    print_answer,
    print_deployed,
    same,
    verdict,
)

QUERY = Query(3, "Where is laksa eaten?", "SELECT 1")


def timed(*rows: tuple[Any, ...]) -> Timed:
    return Timed((("location", "bowls"), list(rows)), 1.25)


def printed(by_engine: dict[str, Timed]) -> str:
    console = Console(record=True, width=100)
    print_answer(console, QUERY, by_engine)
    return console.export_text()


def test_one_answer_of_two_engines_is_printed_once() -> None:
    text = printed({"DuckDB": timed(("Katong", 7)), "PostgreSQL": timed(("Katong", 7))})
    assert text.count("Katong") == 1
    assert "3. Where is laksa eaten?" in text
    assert "DuckDB 1.2 s, PostgreSQL 1.2 s; the same answer" in text


def test_answers_that_differ_are_both_printed_and_said_to_differ() -> None:
    text = printed({"DuckDB": timed(("Katong", 7)), "PostgreSQL": timed(("Katong", 8))})
    assert "DuckDB answered" in text
    assert "PostgreSQL answered" in text
    assert "the answers differ" in text
    assert "the same answer" not in text


def test_the_order_of_rows_is_part_of_an_answer() -> None:
    one, other = timed(("Katong", 7), ("Bedok", 7)), timed(("Bedok", 7), ("Katong", 7))
    assert not same([one.answer, other.answer])


def test_one_engine_alone_is_not_said_to_agree() -> None:
    assert "same" not in printed({"DuckDB": timed(("Katong", 7))})


def test_every_function_has_its_accuracy_and_its_time() -> None:
    console = Console(record=True, width=100)
    measured = {"udf_food_name": Measured(0.94, 2.6), "udf_food_vgg": Measured(0.9525, 1.3)}
    print_accuracies(console, measured, 400)
    text = console.export_text()
    assert "0.940" in text
    assert "0.953" in text or "0.952" in text
    assert "2.6" in text
    assert "400 photos that no model saw" in text


def test_the_ensemble_is_held_against_the_best_of_the_single_models() -> None:
    singles = {"udf_a": Measured(0.90, 1.0), "udf_b": Measured(0.93, 2.0), "udf_c": Measured(0.93, 1.5)}

    def said(accuracy: float, photo_ms: float = 3.0) -> str:
        measured = {"udf_all": Measured(accuracy, photo_ms), **singles}
        return verdict("udf_all", measured, ["all_b/1", "all_c/1"])

    assert "beats the best single model, udf_c, by 2.0 points" in said(0.95)
    assert "1.0 points behind udf_c" in said(0.92)
    assert "as many rightly as udf_c, in more time" in said(0.93)
    assert "as many rightly as udf_c, in less time" in said(0.93, 1.4)
    of_one = verdict("udf_all", {"udf_all": singles["udf_c"], **singles}, ["all_c/1"])
    assert "udf_all is all_c/1 alone" in of_one


def test_what_was_deployed_is_told_with_its_members_and_its_interval() -> None:
    console = Console(record=True, width=140)
    told = {
        "models": ["food_name_vgg/1", "food_name_resnet/2"],
        "validation_accuracy": 0.96,
        "test_accuracy": 0.95,
        "test_low": 0.878,
        "test_high": 0.98,
        "test_rows": 80,
    }
    print_deployed(console, {"udf_food_name": told})
    text = console.export_text()
    assert "food_name_vgg/1, food_name_resnet/2" in text
    assert "0.950 (0.878 to 0.980, 80 photos)" in text
