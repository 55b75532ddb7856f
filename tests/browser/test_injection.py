"""Whatever a user can set is said on every page as the text that it is: no markup, no script, no link."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import duckdb
import pytest
from playwright.sync_api import expect

import ml_udf.duckdb
from ml_udf.client import Client
from ml_udf.client.claim import Claim
from ml_udf.errors import MlUdfError
from ml_udf.sharing import share
from ml_udf.tokens import TokenCalls
from tests.browser.watch import Watch
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model, image_model
from tests.training_data import draw_photos
from tests.waiting import wait_for_job, wait_until

pytestmark = pytest.mark.security

# Each leaves an element `xss-probe`, a global or a dialog where it is not escaped as its place asks.
PAYLOADS = (
    "<xss-probe></xss-probe><script>window.__xss=1</script>",
    '"><img src=x onerror="window.__xss=1"><xss-probe>',
    "'><svg onload='window.__xss=1'><xss-probe>",
    "</title></textarea></style></script><xss-probe>",
    "<iframe srcdoc='<script>parent.__xss=1</script>'></iframe><xss-probe>",
    "javascript:window.__xss=1//",
    "&lt;xss-probe&gt;{{7*13370191}}${7*13370191}",
    "\u2028'-alert(1)-'\\\"-alert(1)//",
)
OWNERS = [payload for payload in PAYLOADS if payload.isprintable()]  # the others are refused
LOOK = """() => ({
  probes: document.querySelectorAll("xss-probe").length,
  ran: window.__xss ?? null,
  links: [...document.querySelectorAll("[href],[src],[action],[formaction]")].flatMap(one =>
    ["href", "src", "action", "formaction"].map(name => one.getAttribute(name) ?? "")).filter(
    url => /^\\s*(javascript|data|vbscript):/i.test(url)),
  handlers: [...document.querySelectorAll("*")].filter(one =>
    one.getAttributeNames().some(name => name.startsWith("on"))).length,
  computed: document.body.innerText.includes("93591337"),
})"""
HARMLESS: dict[str, object] = {"probes": 0, "ran": None, "links": [], "handlers": 0, "computed": False}


POISON, LEARNT, LOOKS = "udf_poison", "udf_learnt", "udf_looks"
SAID = quote(PAYLOADS[1], safe="")
ADDRESSES = (
    "",
    "?hours=" + SAID,
    "functions",
    f"functions/{POISON}",
    f"functions/{LEARNT}",
    f"functions/{SAID}",
    "models",
    "models/poison",
    f"models/{SAID}",
    "training",
    "jobs/1",
    "jobs/1?knobs=all",
    "jobs/2",
    f"jobs/{SAID}",
    "datasets/poison",
    "datasets/pictures",
    f"datasets/{SAID}",
    f"datasets/poison/confusion?function={LEARNT}",
    f"datasets/poison/confusion?function={LEARNT}&truth={SAID}&answer={SAID}",
    f"datasets/poison/confusion?function={SAID}",
    "sql",
    "who",
    f"login?next={SAID}&link={SAID}",
)
# Where a payload must be read as it was written.
TOLD = {
    f"functions/{POISON}": PAYLOADS[0],
    "models/poison": PAYLOADS[0],
    "datasets/poison": PAYLOADS[0],
    "jobs/2": PAYLOADS[1],  # the name of a photo that is gone, in the error by which it failed
    "who": PAYLOADS[0],  # whom a database named
}


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    """Payloads as classes, defaults, labels, keys, texts, queries, users, names of files, and in errors."""
    folder = tmp_path_factory.mktemp("poisoned")
    photos = folder / "photos"
    with inference_server(folder / "home", media_roots=[photos]) as server:
        poison_model(server, folder)
        with duckdb.connect() as db:
            registration = ml_udf.duckdb.register(db, server.url)
            poison_texts(db)
            poison_pictures(db, photos)
            db.execute(f"SELECT ml_udf.deploy('{LEARNT}', job => 1)").fetchall()
            registration.close()
        yield server


def poison_model(server: InferenceServer, folder: Path) -> None:
    model = hashing_model(folder / "models", "poison")
    manifest = json.loads((model / "model.json").read_text())
    manifest["classes"] = list(PAYLOADS)
    (model / "model.json").write_text(json.dumps(manifest))
    with contextlib.closing(Client(server.url)) as client:
        client.post("/register", {"directory": str(model)})
        options = {"models": ["poison"], "default": PAYLOADS[0], "min_confidence": 0.01}
        client.on_behalf_of(Claim(PAYLOADS[0], PAYLOADS[2])).put(f"/v1/functions/{POISON}", options)
        client.post("/register", {"directory": str(image_model(folder / "models", "looks"))})
        client.put(f"/v1/functions/{LOOKS}", {"models": ["looks"]})
        for payload in PAYLOADS:  # who asks, on the function's page
            client.on_behalf_of(Claim(payload, payload)).predict(POISON, [payload])


def poison_texts(db: duckdb.DuckDBPyConnection) -> None:
    """A dataset, and job 1 that learnt from it."""
    rows = [(f"{text} {number}", f"{text} text {number}", text) for text in PAYLOADS for number in range(12)]
    db.execute("CREATE TABLE poison (id VARCHAR, text VARCHAR, label VARCHAR)")
    db.executemany("INSERT INTO poison VALUES (?, ?, ?)", rows)
    create(
        db, "poison", f"SELECT id, text, label FROM poison WHERE label <> $q${PAYLOADS[3]} $q$", "text", "id"
    )
    ((job,),) = db.execute(
        "SELECT ml_udf.train('poison', task => 'text-classification', models => ['fasttext'],"
        " budget => '3 epochs', max_epochs => 1)"
    ).fetchall()
    assert job == 1
    wait_for_job(lambda query: db.execute(query).fetchall()[0][0], 1, 600.0)


def poison_pictures(db: duckdb.DuckDBPyConnection, photos: Path) -> None:
    rows = []
    for number, (name, label) in enumerate(draw_photos(photos, 40)):
        said = f"{PAYLOADS[number % len(PAYLOADS)]} {number}.png".replace("/", "\u2215")
        (photos / name).rename(photos / said)
        if number == 0:
            (photos / said).write_text("no picture")
        rows.append((said, label))
    db.execute("CREATE TABLE pictures (image_path VARCHAR, label VARCHAR)")
    db.executemany("INSERT INTO pictures VALUES (?, ?)", rows)
    create(db, "pictures", "SELECT image_path, label FROM pictures", "image", "image_path")
    for said, _ in rows:
        if said.startswith(PAYLOADS[1].replace("/", "\u2215")):
            (photos / said).unlink()
    ((job,),) = db.execute(
        "SELECT ml_udf.train('pictures', models => ['squeezenet'], budget => '2 epochs', max_epochs => 1,"
        " size => 32)"
    ).fetchall()
    assert job == 2
    state = "SELECT state FROM ml_udf.jobs WHERE id = 2"
    wait_until(lambda: db.execute(state).fetchall() == [("failed",)], 600.0)


def create(db: duckdb.DuckDBPyConnection, name: str, query: str, kind: str, key: str) -> None:
    db.execute(
        f"SELECT ml_udf.create_dataset('{name}', $d${query}$d$, target => 'label', key => '{key}',"
        f" task => '{kind}-classification')"
    ).fetchall()


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_page_says_it_as_text(
    glance_at: Callable[..., Watch], poisoned: InferenceServer, address: str
) -> None:
    watch = glance_at()
    for status in (400, 404):
        watch.allow(".*", status)
    watch.page.goto(f"{poisoned.url}/{address}")
    if watch.page.locator("body[data-live]").count():
        expect(watch.page.locator("#link-state")).to_have_text("live")
    assert watch.page.evaluate(LOOK) == HARMLESS
    for one in watch.page.locator("details").all():
        one.evaluate("one => { one.open = true; }")
    assert watch.page.evaluate(LOOK) == HARMLESS
    if address in TOLD:
        assert TOLD[address] in watch.page.inner_text("body")


def test_what_is_confused_is_text(look_at: Callable[..., Watch], poisoned: InferenceServer) -> None:
    watch = look_at()
    watch.page.goto(f"{poisoned.url}/datasets/poison")
    watch.page.get_by_role("button", name=f"Ask {LEARNT}").click()
    expect(watch.page.locator(".confusion table")).to_be_visible(timeout=600_000)
    assert watch.page.evaluate(LOOK) == HARMLESS
    watch.page.locator(".confusion td a").first.click()
    expect(watch.page.locator(".wrong-rows > li").first).to_be_visible()
    assert watch.page.evaluate(LOOK) == HARMLESS


@pytest.mark.parametrize("scripts", [True, False])
def test_what_is_typed_to_be_tried_is_text(
    look_at: Callable[..., Watch], poisoned: InferenceServer, scripts: bool
) -> None:
    watch = look_at(scripts=scripts)
    watch.page.goto(f"{poisoned.url}/functions/{POISON}")
    for payload in PAYLOADS:
        watch.page.fill("textarea", payload)
        watch.page.get_by_role("button", name="Ask", exact=True).click()
        expect(watch.page.locator("#answer blockquote")).to_have_text(payload)
        expect(watch.page.locator("#answer .said")).to_be_visible()
        if scripts:
            assert watch.page.evaluate(LOOK) == HARMLESS
        assert watch.page.locator("xss-probe").count() == 0


@pytest.mark.parametrize("scripts", [True, False])
def test_what_a_photo_is_called_that_is_tried_is_text(
    look_at: Callable[..., Watch], poisoned: InferenceServer, scripts: bool
) -> None:
    watch = look_at(scripts=scripts)
    watch.page.goto(f"{poisoned.url}/functions/{LOOKS}")
    for payload in PAYLOADS:
        watch.page.set_input_files(
            "#try-file", {"name": f"{payload}.png", "mimeType": "image/png", "buffer": payload.encode()}
        )
        watch.page.get_by_role("button", name="Ask", exact=True).click()
        expect(watch.page.locator("#answer")).to_contain_text("not a JPEG or PNG")
        if scripts:
            assert watch.page.evaluate(LOOK) == HARMLESS
        assert watch.page.locator("xss-probe").count() == 0


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[InferenceServer, str]]:
    """A server whose things are owned by, and shared with, tokens called by payloads; its admin's token."""
    folder = tmp_path_factory.mktemp("owned")
    with inference_server(folder / "home") as server:
        with contextlib.closing(Client(server.url)) as client:
            admin = str(TokenCalls(client).create("root", ["admin"])["secret"])
        with contextlib.closing(Client(server.url, token=admin)) as client:
            client.post("/register", {"directory": str(hashing_model(folder, "words"))})
            for number, payload in enumerate(OWNERS):
                client.put(f"/v1/functions/udf_{number}", {"models": ["words"]})
                share(client, "function", f"udf_{number}", shared_with=OWNERS, owner=payload)
            share(client, "model", "words", shared_with=OWNERS, owner=OWNERS[0])
            for payload in PAYLOADS:
                with contextlib.suppress(MlUdfError):  # no token is called so
                    TokenCalls(client).create(payload, ["read"])
        yield server, admin


def test_the_names_of_owners_and_of_tokens_are_text(
    look_at: Callable[..., Watch], owned: tuple[InferenceServer, str]
) -> None:
    server, admin = owned
    watch = look_at()
    watch.page.goto(f"{server.url}/login")
    watch.page.get_by_label("Token", exact=True).fill(admin)
    watch.page.get_by_role("button", name="Log in").click()
    expect(watch.page.locator("h1")).to_have_text("Overview")
    for address in (*(f"functions/udf_{number}" for number in range(len(OWNERS))), "models/words", "who"):
        watch.page.goto(f"{server.url}/{address}")
        for one in watch.page.locator("details").all():
            one.evaluate("one => { one.open = true; }")
        assert watch.page.evaluate(LOOK) == HARMLESS
    watch.page.goto(f"{server.url}/models/words")
    assert PAYLOADS[0] in watch.page.inner_text("body")
    assert PAYLOADS[1] in watch.page.get_by_label("Shared with").input_value()
    watch.allow("/who/tokens", 400)
    for payload in PAYLOADS:
        watch.page.goto(f"{server.url}/who")
        watch.page.get_by_label("Name", exact=True).evaluate(
            "(one, said) => { one.removeAttribute('pattern'); one.value = said; }", payload
        )
        watch.page.get_by_label("read", exact=True).check()
        watch.page.get_by_role("button", name="Make it").click()
        expect(watch.page.get_by_role("alert")).to_contain_text("letters, digits")
        assert watch.page.evaluate(LOOK) == HARMLESS
