"""What the demo prints: answers side by side, accuracies, a verdict. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from examples.foodlog.queries import Query
from examples.foodlog.tables import Answer

__all__ = [
    "Measured",
    "Timed",
    "print_accuracies",
    "print_answer",
    "print_asked",
    "print_deployed",
    "same",
    "verdict",
]

_SHOWN_ROWS = 12


@dataclass(frozen=True, slots=True)
class Timed:
    """What one engine answered to one statement, and how long it took."""

    answer: Answer
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """How a function did on the held-out photos: the share that it named rightly, and its time for one."""

    accuracy: float
    photo_ms: float


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


def print_asked(console: Console, engine: str, title: str, sql: str) -> None:
    """A statement, before an engine runs it."""
    console.print(f"[bold]{title}[/bold], on {engine}:", highlight=False)
    console.print(Syntax(sql, "sql", background_color="default", word_wrap=True))


def print_deployed(console: Console, deployed: Mapping[str, Mapping[str, Any]]) -> None:
    """One line per function: its members, and what the training service has measured."""
    table = Table("function", "answered by", "photos that chose", "photos that chose nothing")
    for function, told in deployed.items():
        interval = f"{told['test_low']:.3f} to {told['test_high']:.3f}, {told['test_rows']} photos"
        tested = f"{told['test_accuracy']:.3f} ({interval})"
        table.add_row(function, ", ".join(told["models"]), f"{told['validation_accuracy']:.3f}", tested)
    console.print(table)


def print_accuracies(console: Console, measured: Mapping[str, Measured], photos: int) -> None:
    """One line per function: the share of held-out photos that it named rightly, and how fast."""
    table = Table("function", f"accuracy on {photos} photos that no model saw", "ms a photo")
    best = max(each.accuracy for each in measured.values())
    for function, each in measured.items():
        style = "bold green" if each.accuracy == best else ""
        table.add_row(function, f"{each.accuracy:.3f}", f"{each.photo_ms:.1f}", style=style)
    console.print(table)


def verdict(ensemble: str, measured: Mapping[str, Measured], members: Sequence[str]) -> str:
    """Whether the ensemble is worth its members: in words, against the best of the other functions."""
    mine = measured[ensemble]
    if len(members) == 1:
        return f"{ensemble} is {members[0]} alone: on the photos that chose, no other made it better."
    others = {name: each for name, each in measured.items() if name != ensemble}
    best = max(others, key=lambda name: (others[name].accuracy, -others[name].photo_ms))
    gain = 100 * (mine.accuracy - others[best].accuracy)
    if gain > 0:
        return f"[green]{ensemble} beats the best single model, {best}, by {gain:.1f} points."
    if gain < 0:
        return f"[yellow]{ensemble} is {-gain:.1f} points behind {best} on these photos."
    faster = "in less time" if mine.photo_ms < others[best].photo_ms else "in more time"
    return f"{ensemble} names as many rightly as {best}, {faster}."


def _text(value: Any) -> str:  # noqa: ANN401  # whatever an engine answers
    return "" if value is None else str(value)
