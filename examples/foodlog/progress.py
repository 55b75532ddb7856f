"""One kind of progress bar for every long step of the example."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["bar", "bars"]


def bars(console: Console | None = None) -> Progress:
    """Several bars at once, one below the other; shown while in its `with` block."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


@contextmanager
def bar(title: str, total: int, console: Console | None = None) -> Iterator[Callable[[], None]]:
    """Show one bar while inside; the function it gives moves the bar on by one."""
    with bars(console) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)
