"""From a dataset to a function and to its wrong photos, by pages alone."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.accessibility import barriers
from tests.browser.kitchen import DATASET, FOOD, Kitchen
from tests.browser.watch import DESK, LOOKS, Look, Watch, picture

JOB_MS = 600_000.0
LOADED = "all => Promise.all(all.map(img => img.decode().then(() => img.naturalWidth)))"


def start_job(page: Page, kitchen: Kitchen, budget: str) -> None:
    page.goto(f"{kitchen.url}/datasets/{DATASET}")
    page.get_by_label("Budget").fill(budget)
    page.get_by_role("button", name="Train", exact=True).click()
    expect(page.locator("h1")).to_contain_text("Job ")


def test_a_job_is_watched_as_it_trains_and_its_best_is_deployed(
    look_at: Callable[..., Watch], kitchen: Kitchen
) -> None:
    watch = look_at()
    page = watch.page
    start_job(page, kitchen, "3 epochs")
    opened = page.evaluate("performance.timeOrigin")
    expect(page.locator("#state")).to_contain_text("done", timeout=JOB_MS)
    expect(page.locator("#curves svg").first).to_be_visible()
    expect(page.locator("#studies")).to_contain_text("finished")
    assert page.evaluate("performance.timeOrigin") == opened, "it was watched, not loaded again"
    picture(page, "job-watched", DESK)

    page.get_by_label("Function").fill("udf_by_page")
    page.get_by_label("Choose").select_option("best")
    page.get_by_label("Test").select_option("always")
    page.get_by_role("button", name="Deploy").click()
    expect(page.locator("main")).to_contain_text("udf_by_page", timeout=JOB_MS)
    assert barriers(page) == []
    picture(page, "deployed", DESK)
    page.goto(f"{kitchen.url}/functions/udf_by_page")
    expect(page.locator(".heading")).to_contain_text("version 1")


def test_a_job_is_cancelled(look_at: Callable[..., Watch], kitchen: Kitchen) -> None:
    watch = look_at()
    watch.say_yes()
    page = watch.page
    start_job(page, kitchen, "300 epochs")
    expect(page.locator("#state")).to_contain_text("running")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#state")).to_contain_text(re.compile("cancel", re.IGNORECASE), timeout=JOB_MS)
    assert len(watch.asked) == 1


@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_a_cell_of_what_is_confused_leads_to_its_wrong_photos(
    look_at: Callable[..., Watch], kitchen: Kitchen, look: Look
) -> None:
    page = look_at(look).page
    page.goto(f"{kitchen.url}/datasets/{DATASET}")
    page.get_by_role("button", name=f"Ask {FOOD}").click()
    expect(page.locator(".confusion table")).to_be_visible(timeout=JOB_MS)
    cell = page.locator(".confusion td.is-wrong a").first
    expect(cell).to_be_visible()
    wrong = int(cell.inner_text())
    cell.click()
    rows = page.locator(".wrong-rows > li")
    expect(rows).to_have_count(wrong)
    expect(rows.first).to_contain_text(re.compile("is [ab]"))
    widths = rows.locator("img").evaluate_all(LOADED)
    assert len(widths) == wrong
    assert all(widths)
    assert barriers(page) == []
    picture(page, "confusion-wrong-rows", look)


@pytest.mark.security
def test_a_picture_is_a_picture_and_nothing_else(kitchen: Kitchen) -> None:
    """It is made anew of a photo's pixels, below the media roots alone, and said to be what it is."""
    page = httpx.get(f"{kitchen.url}/datasets/{DATASET}").text
    src = re.findall(r'src="\.\./(datasets/[^"]+/pictures/[^"]+)"', page)[0]
    reply = httpx.get(f"{kitchen.url}/{src}")
    assert reply.headers["content-type"] == "image/jpeg"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"
    assert reply.content.startswith(b"\xff\xd8\xff")
    assert httpx.get(f"{kitchen.url}/{src.rpartition('/')[0]}/999999").status_code == 404
    assert httpx.get(f"{kitchen.url}/{src.rpartition('/')[0]}/-1").status_code in (400, 404)
