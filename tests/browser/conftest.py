"""One Chromium for the files of this folder, and people in front of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.chromium import CHROMIUM, chromium
from tests.browser.kitchen import Kitchen, furnished, kitchen_like
from tests.browser.watch import DESK, Look, Watch, new_context, watched

__all__ = ["browser", "furnished", "glance_at", "kitchen", "look_at", "pages_left_open"]


# Not of the whole session: while its driver runs in this thread, no test could run an event loop of its own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        reason = (
            f"NOT TESTED, the pages: {CHROMIUM} is missing (Debian: apt-get install chromium-headless-shell)"
        )
        warnings.warn(reason, stacklevel=1)
        pytest.skip(reason)
    with chromium() as running:
        yield running


@pytest.fixture(scope="package")
def kitchen(tmp_path_factory: pytest.TempPathFactory, browser: Browser, furnished: Path) -> Iterator[Kitchen]:
    """A server without a token, with something on every page. For tests that only look."""
    with kitchen_like(furnished, tmp_path_factory.mktemp("kitchen")) as running:
        yield running


@pytest.fixture(scope="module")
def pages_left_open(browser: Browser) -> Iterator[dict[tuple[Look, bool], Watch]]:
    """Of `glance_at`: by how they are looked at, and whether with scripts."""
    opened: dict[tuple[Look, bool], Watch] = {}
    yield opened
    for watch in opened.values():
        watch.page.context.close()


@pytest.fixture
def glance_at(
    browser: Browser, pages_left_open: dict[tuple[Look, bool], Watch]
) -> Iterator[Callable[..., Watch]]:
    """As `look_at`, for who leaves nothing in the browser: the next one has the same page.

    A browser of one's own takes as long to begin as a page to show.
    """
    lent: list[tuple[Look, bool]] = []

    def open_page(look: Look = DESK, *, scripts: bool = True) -> Watch:
        key = (look, scripts)
        if key not in pages_left_open:
            pages_left_open[key] = Watch(new_context(browser, look, scripts=scripts).new_page())
        lent.append(key)
        return pages_left_open[key]

    yield open_page
    for key in lent:
        watch = pages_left_open[key]
        try:
            watch.check()
            watch.begin_anew()
        except BaseException:
            pages_left_open.pop(key).page.context.close()
            raise


@pytest.fixture
def look_at(browser: Browser) -> Iterator[Callable[..., Watch]]:
    """Opens an empty page in a browser of one's own; the test fails at its end on what went wrong in it."""
    with ExitStack() as stack:

        def open_page(look: Look = DESK, *, scripts: bool = True) -> Watch:
            context = stack.enter_context(new_context(browser, look, scripts=scripts))
            return stack.enter_context(watched(context))

        yield open_page
