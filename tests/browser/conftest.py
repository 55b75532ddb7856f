"""One Chromium for the files of this folder, and people in front of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser

from tests.browser.chromium import CHROMIUM, chromium
from tests.browser.kitchen import Kitchen, kitchen_in
from tests.browser.watch import DESK, Look, Watch, new_context, watched


# Not of the whole session: while its driver runs in this thread, no test could run an event loop of its own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        reason = f"NOT TESTED, the pages: {CHROMIUM} is missing (Debian: apt-get install chromium)"
        warnings.warn(reason, stacklevel=1)
        pytest.skip(reason)
    with chromium() as running:
        yield running


@pytest.fixture(scope="package")
def kitchen(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Kitchen]:
    """A server without a token, with something on every page. For tests that only look."""
    folder = tmp_path_factory.mktemp("kitchen")
    with kitchen_in(folder) as running:
        yield running


@pytest.fixture
def look_at(browser: Browser) -> Iterator[Callable[..., Watch]]:
    """Opens an empty page in a browser of one's own; the test fails at its end on what went wrong in it."""
    with ExitStack() as stack:

        def open_page(look: Look = DESK, *, scripts: bool = True) -> Watch:
            context = stack.enter_context(new_context(browser, look, scripts=scripts))
            return stack.enter_context(watched(context))

        yield open_page
