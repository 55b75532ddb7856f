"""What a check found: a word of state, what was seen, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ml_udf.cli.console import console

__all__ = ["Finding", "failed", "found", "noted", "show"]

_MARKS = {"ok": ("✓", "green"), "note": ("!", "yellow"), "fail": ("✗", "bold red")}


@dataclass(frozen=True, slots=True)
class Finding:
    """One link of the chain: whole (`ok`), worth knowing (`note`), or broken (`fail`)."""

    state: Literal["ok", "note", "fail"]
    text: str
    mend: str = ""


def found(text: str) -> Finding:
    """A link that holds."""
    return Finding("ok", text)


def noted(text: str, mend: str = "") -> Finding:
    """Something that limits what works, and is no fault."""
    return Finding("note", text, mend)


def failed(text: str, mend: str) -> Finding:
    """A broken link, and what to do."""
    return Finding("fail", text, mend)


def show(finding: Finding) -> bool:
    """Print a finding; whether it is a broken link."""
    mark, style = _MARKS[finding.state]
    console.print(f"  {mark}", style=style, end=" ")
    console.print(_plain(finding.text), markup=False, highlight=False)
    if finding.mend:
        console.print(f"    → {_plain(finding.mend)}", markup=False, highlight=False)
    return finding.state == "fail"


def _plain(text: str) -> str:
    """Without what a terminal would obey: names of functions and servers' answers are anybody's."""
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)
