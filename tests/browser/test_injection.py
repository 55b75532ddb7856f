"""Whatever a user can set is said on every page as the text that it is: no markup, no script, no link."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

import pytest

from ml_udf.client import Client
from ml_udf.client.claim import Claim
from tests.browser.kitchen import FOOD, Kitchen, kitchen_in
from tests.browser.page_list import PAGES, address_of
from tests.browser.watch import Watch
from tests.models import hashing_model

pytestmark = pytest.mark.security

# Each leaves an element `xss-probe`, a global or a dialog where it is not escaped as its place asks.
PAYLOADS = (
    "<xss-probe></xss-probe><script>window.__xss=1</script>",
    '"><img src=x onerror="window.__xss=1"><xss-probe>',
    "'><svg onload='window.__xss=1'><xss-probe>",
    "</title></textarea></style></script><xss-probe>",
    "<iframe srcdoc='<script>parent.__xss=1</script>'></iframe><xss-probe>",
    "javascript:window.__xss=1//",
    "&lt;xss-probe&gt;{{7*191}}${7*191}",
    "\u2028'-alert(1)-'\\\"-alert(1)//",
)
LOOK = """() => ({
  probes: document.querySelectorAll("xss-probe").length,
  ran: window.__xss ?? null,
  links: [...document.querySelectorAll("[href],[src],[action],[formaction]")].flatMap(one =>
    ["href", "src", "action", "formaction"].map(name => one.getAttribute(name) ?? "")).filter(
    url => /^\\s*(javascript|data|vbscript):/i.test(url)),
  handlers: [...document.querySelectorAll("*")].filter(one =>
    one.getAttributeNames().some(name => name.startsWith("on"))).length,
  computed: document.body.innerText.includes("1337"),
})"""
HARMLESS: dict[str, object] = {"probes": 0, "ran": None, "links": [], "handlers": 0, "computed": False}


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory, browser: object) -> Iterator[Kitchen]:
    """Payloads as classes, defaults, labels, keys, file names, texts, queries, users and errors."""
    folder = tmp_path_factory.mktemp("poisoned")
    with kitchen_in(folder) as kitchen:
        model = hashing_model(folder / "models", "poison")
        manifest = json.loads((model / "model.json").read_text())
        manifest["classes"] = list(PAYLOADS)
        (model / "model.json").write_text(json.dumps(manifest))
        with contextlib.closing(Client(kitchen.url)) as client:
            client.post("/register", {"directory": str(model)})
            client.put(
                "/v1/functions/udf_poison",
                {"models": ["poison"], "default": PAYLOADS[0], "min_confidence": 0.01},
            )
            photo = str(next(kitchen.photos.rglob("*.png")))
            for payload in PAYLOADS:  # who asks, on the function's page
                client.on_behalf_of(Claim(payload, payload)).predict(FOOD, [photo])
        yield kitchen


@pytest.mark.parametrize("route", PAGES)
def test_a_page_says_it_as_text(look_at: Callable[..., Watch], poisoned: Kitchen, route: str) -> None:
    watch = look_at()
    watch.page.goto(f"{poisoned.url}/{address_of(route, poisoned)}")
    assert watch.page.evaluate(LOOK) == HARMLESS
    if route == "/functions/{name}":
        assert PAYLOADS[0] in watch.page.inner_text("body")
