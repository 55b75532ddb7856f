"""What the demo prints: answers side by side, accuracies, a verdict. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from examples.foodlog.queries import Query
from examples.foodlog.tables import Answer

__all__ = ["Timed", "print_accuracies", "print_answer", "same"]

_SHOWN_ROWS = 12


@dataclass(frozen=True, slots=True)
class Timed:
    """What one engine answered to one statement, and how long it took."""

    answer: Answer
    seconds: float


def same(answers: Sequence[Answer]) -> bool:
    """Whether all answers have the same rows in the same order."""
    return all(answer[1] == answers[0][1] for answer in answers)


def print_answer(console: Console, query: Query, by_engine: Mapping[str, Timed]) -> None:
    """A query's title and rows once, and every engine's time."""
    answers = [timed.answer for timed in by_engine.values()]
    for engine, (names, rows) in zip(by_engine, answers, strict=True):
        console.print(f"[bold]{query.number}. {query.title}[/bold]", highlight=False)
        if not same(answers):
            console.print(f"{engine} answered:")
        table = Table(*names)
        for row in rows[:_SHOWN_ROWS]:
            table.add_row(*map(_text, row))
        console.print(table)
        if same(answers):
            break
    times = ", ".join(f"{engine} {timed.seconds:.1f} s" for engine, timed in by_engine.items())
    if len(answers) == 1:
        verdict = ""
    elif same(answers):
        verdict = "; [green]the same answer[/green]"
    else:
        verdict = "; [red]the answers differ[/red]"
    console.print(f"   {times}{verdict}\n")


def print_accuracies(console: Console, accuracies: Mapping[str, float], photos: int) -> None:
    """One line per function: the share of held-out photos that it named rightly."""
    table = Table("function", f"accuracy on {photos} photos that no model saw")
    best = max(accuracies.values())
    for function, accuracy in accuracies.items():
        style = "bold green" if accuracy == best else ""
        table.add_row(function, f"{accuracy:.3f}", style=style)
    console.print(table)


def _text(value: Any) -> str:  # noqa: ANN401  # whatever an engine answers
    return "" if value is None else str(value)
