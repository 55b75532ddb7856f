"""A page that is watched: how it is looked at, and what must never happen meanwhile."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Page,
    Request,
    Response,
    ViewportSize,
    expect,
)

__all__ = ["DESK", "EVERY_LOOK", "LOOKS", "Look", "Watch", "new_context", "picture", "watched"]

_LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))
_TIMEOUT_MS = 60_000.0  # of one action: other tests run beside this one
expect.set_options(timeout=_TIMEOUT_MS)
_PICTURES = Path(__file__).parents[2] / ".build" / "pages"


@dataclass(frozen=True, slots=True)
class Look:
    """How a page is looked at: `theme` is light or dark, `width` in CSS pixels."""

    theme: str
    width: int

    def __str__(self) -> str:
        return f"{self.theme}-{self.width}"

    @property
    def viewport(self) -> ViewportSize:
        """A desk's screen, or a phone's."""
        return {"width": self.width, "height": 800 if self.width > 600 else 844}


EVERY_LOOK = tuple(Look(theme, width) for theme in ("light", "dark") for width in (1280, 390))
DESK = EVERY_LOOK[0]
LOOKS = (DESK, EVERY_LOOK[-1])  # each theme and each width once: for what is done on a page, step by step


class Watch:
    """What goes wrong in a page, as it comes.

    That is: an error of a script, a line of error or warning in the console, a dialog, a request off this
    machine, a reply of 400 and more that the test does not mean to get, a request that fails.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        self.requested: list[str] = []
        self.asked: list[str] = []  # questions of dialogs that were meant
        self._meant: list[tuple[re.Pattern[str], int]] = []
        self._says_yes = False
        page.on("pageerror", lambda error: self.faults.append(f"page error: {error}"))
        page.on("crash", lambda _: self.faults.append("the page crashed"))
        page.on("console", self._said)
        page.on("dialog", self._opened)
        page.on("request", self._asked)
        page.on("response", self._answered)
        page.on("requestfailed", self._failed)

    def allow(self, path: str, status: int) -> None:
        """From now on a reply of that status from that path (a regular expression) is meant; 0 = none at all.

        The browser writes a line about each to the console, which is meant with it.
        """
        self._meant.append((re.compile(path), status))

    def say_yes(self) -> None:
        """From now on, what the page asks is meant, and answered with yes."""
        self._says_yes = True

    def check(self) -> None:
        """Raises AssertionError with all that went wrong."""
        assert self.faults == []

    def begin_anew(self) -> None:
        """Leave what is shown, and forget what was seen of it and allowed for it."""
        self.page.goto("about:blank")
        for seen in (self.faults, self.requested, self.asked, self._meant):
            seen.clear()
        self._says_yes = False

    def _said(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning"):
            return
        url = message.location.get("url", "")
        if "Failed to load resource" in message.text and self._is_meant(url):
            return
        self.faults.append(f"console {message.type}: {message.text} ({url})")

    def _opened(self, dialog: Dialog) -> None:
        if self._says_yes and dialog.type == "confirm":
            self.asked.append(dialog.message)
            dialog.accept()
            return
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _asked(self, request: Request) -> None:
        self.requested.append(request.url)
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob", "about") and parts.hostname not in _LOOPBACK:
            self.faults.append(f"a request off this machine: {request.url}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400 and not self._is_meant(response.url, response.status):
            self.faults.append(f"{response.status} from {response.request.method} {response.url}")

    def _failed(self, request: Request) -> None:
        reason = request.failure or ""
        # A stream that the page leaves ends so.
        if reason != "net::ERR_ABORTED" and not self._is_meant(request.url, 0):
            self.faults.append(f"request failed: {request.url}: {reason}")

    def _is_meant(self, url: str, status: int | None = None) -> bool:
        path = urlsplit(url).path
        return any(form.fullmatch(path) and status in (None, meant) for form, meant in self._meant)


def new_context(browser: Browser, look: Look = DESK, *, scripts: bool = True) -> BrowserContext:
    """A person's browser: cookies of their own, nothing kept of anybody before."""
    context = browser.new_context(
        color_scheme="dark" if look.theme == "dark" else "light",
        viewport=look.viewport,
        java_script_enabled=scripts,
        reduced_motion="reduce",
    )
    context.set_default_timeout(_TIMEOUT_MS)
    return context


@contextlib.contextmanager
def watched(context: BrowserContext) -> Iterator[Watch]:
    """A new page, closed at the end. Raises AssertionError with what was seen."""
    watch = Watch(context.new_page())
    try:
        yield watch
        watch.check()
    finally:
        watch.page.close()


def picture(page: Page, name: str, look: Look) -> Path:
    """Writes what the page shows, from its top to its end, to `.build/pages/NAME-theme-width.png`."""
    _PICTURES.mkdir(parents=True, exist_ok=True)
    file = _PICTURES / f"{name}-{look}.png"
    page.screenshot(path=file, full_page=True)
    return file
