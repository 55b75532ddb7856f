from typing import Any

from rich.console import Console

from examples.foodlog.queries import Query
from examples.foodlog.report import Timed, print_accuracies, print_answer, same

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


def test_every_function_has_its_accuracy() -> None:
    console = Console(record=True, width=100)
    print_accuracies(console, {"udf_food_name": 0.94, "udf_food_vgg": 0.9525}, 400)
    text = console.export_text()
    assert "0.940" in text
    assert "0.953" in text or "0.952" in text
    assert "400 photos that no model saw" in text
