"""Debian's Chromium as a process of the tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

__all__ = ["CHROMIUM", "chromium"]

_SHELL = Path("/usr/bin/chromium-headless-shell")  # without windows: it shows a page in half the time
CHROMIUM = _SHELL if _SHELL.exists() else Path("/usr/bin/chromium")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_START_MS = 120_000.0  # other tests run beside it


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own, which goes with it. Its driver ends it, and no other."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=list(_FLAGS), timeout=_START_MS
        )
        try:
            yield browser
        finally:
            browser.close()
