"""Where a function that answers with numbers is wrong: how far, and the rows that lie farthest off."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import duckdb
import pytest
from playwright.sync_api import expect

import ml_udf.duckdb
from ml_udf.client import Client
from tests.browser.accessibility import barriers
from tests.browser.watch import LOOKS, Look, Watch, picture
from tests.inference_server import InferenceServer, inference_server
from tests.task_models import price_model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServer]:
    """One whose udf_price says 2 · grams + fat, of dishes that cost that, but for one in three: 7 less."""
    folder = tmp_path_factory.mktemp("prices")
    with inference_server(folder / "home") as running:
        with contextlib.closing(Client(running.url)) as client:
            client.post("/register", {"directory": str(price_model(folder))})
            client.put("/v1/functions/udf_price", {"models": ["price"]})
        with duckdb.connect() as db:
            registration = ml_udf.duckdb.register(db, running.url)
            db.execute(
                "CREATE TABLE dishes AS SELECT n AS id, n::DOUBLE AS grams, 3.0::DOUBLE AS fat,"
                " 2.0 * n + 3.0 - CASE WHEN n % 3 = 0 THEN 7.0 ELSE 0.0 END AS price FROM range(120) AS r(n)"
            )
            db.execute(
                "SELECT ml_udf.create_dataset('dishes', 'SELECT id, grams, fat, price FROM dishes',"
                " target => 'price', key => 'id', task => 'tabular-regression')"
            ).fetchall()
            registration.close()
        yield running


@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_a_person_sees_how_far_numbers_lie_off_and_which_rows_lie_farthest(
    look_at: Callable[..., Watch], server: InferenceServer, look: Look
) -> None:
    page = look_at(look).page
    page.goto(f"{server.url}/datasets/dishes")
    page.get_by_role("button", name="Ask udf_price").click()
    expect(page.get_by_role("heading", name="Where udf_price is wrong")).to_be_visible()
    rows = page.locator(".wrong-rows > li")
    expect(rows.first).to_contain_text("off by 7")
    assert all("off by 7" in text for text in rows.all_inner_texts())
    figures = page.locator(".figures")
    expect(figures).to_contain_text("root mean square")
    assert page.locator("#confusion").get_by_text("NaN").count() == 0
    assert barriers(page) == []
    picture(page, "numbers", look)
