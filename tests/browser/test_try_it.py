"""A function is tried on its page: a photo, a text, a row of a dataset; and rolled back."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.accessibility import barriers
from tests.browser.kitchen import DATASET, FOOD, REVIEW, Kitchen, greenish_jpeg
from tests.browser.watch import LOOKS, Look, Watch, picture
from tests.models import label_of

# What a browser makes of a file that is dragged in from a folder.
DROP = """([name, text]) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const held = new DataTransfer();
  held.items.add(new File([bytes], name, {type: "image/jpeg"}));
  document.querySelector("[data-drop]").dispatchEvent(
    new DragEvent("drop", {dataTransfer: held, bubbles: true, cancelable: true}));
}"""


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    return greenish_jpeg(tmp_path / "my lunch.jpg")


def open_function(watch: Watch, kitchen: Kitchen, name: str) -> Page:
    watch.page.goto(f"{kitchen.url}/functions/{name}")
    return watch.page


@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_a_photo_that_is_chosen_is_answered_at_once(
    look_at: Callable[..., Watch], kitchen: Kitchen, photo: Path, look: Look
) -> None:
    page = open_function(look_at(look), kitchen, FOOD)
    page.set_input_files("input[type=file]", photo)
    expect(page.locator("#answer .said")).to_contain_text("b ")
    expect(page.locator("#answer img")).to_be_visible()
    assert page.locator("#answer img").evaluate("img => img.decode().then(() => img.naturalWidth)") == 320
    assert page.url.endswith(f"/functions/{FOOD}"), "it is the same page"
    assert barriers(page) == []
    picture(page, "function-tried", look)


def test_a_photo_may_be_dropped(look_at: Callable[..., Watch], kitchen: Kitchen, photo: Path) -> None:
    page = open_function(look_at(), kitchen, FOOD)
    page.evaluate(DROP, [photo.name, base64.b64encode(photo.read_bytes()).decode()])
    expect(page.locator("#answer .said")).to_contain_text("b ")


def test_a_photo_is_tried_without_scripts(
    look_at: Callable[..., Watch], kitchen: Kitchen, photo: Path
) -> None:
    page = open_function(look_at(scripts=False), kitchen, FOOD)
    page.set_input_files("input[type=file]", photo)
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#answer .said")).to_contain_text("b ")
    expect(page.locator("#answer img")).to_have_attribute("src", re.compile("data:image/jpeg;base64,"))
    page.get_by_role("link", name="Overview").click()
    expect(page.locator("h1")).to_have_text("Overview")


def test_what_is_no_photo_is_said_with_what_to_do(
    look_at: Callable[..., Watch], kitchen: Kitchen, tmp_path: Path
) -> None:
    page = open_function(look_at(), kitchen, FOOD)
    (tmp_path / "notes.jpg").write_text("no photo at all")
    page.set_input_files("input[type=file]", tmp_path / "notes.jpg")
    expect(page.locator("#answer [role=alert]")).to_contain_text("input_")
    expect(page.locator("#answer .said")).to_have_count(0)


@pytest.mark.parametrize("scripts", [True, False])
def test_a_typed_text_is_answered(look_at: Callable[..., Watch], kitchen: Kitchen, scripts: bool) -> None:
    page = open_function(look_at(scripts=scripts), kitchen, REVIEW)
    page.fill("textarea", "the noodles were fine")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#answer .said")).to_contain_text(label_of("the noodles were fine"))


@pytest.mark.parametrize("scripts", [True, False])
def test_a_row_of_a_dataset_is_compared_with_its_label(
    look_at: Callable[..., Watch], kitchen: Kitchen, scripts: bool
) -> None:
    page = open_function(look_at(scripts=scripts), kitchen, FOOD)
    page.fill("[name=row]", "2")
    page.get_by_role("button", name="Ask with it").click()
    expect(page.locator("#answer")).to_contain_text(f"row 2 of {DATASET} is labelled")


def test_all_of_it_is_done_by_the_keyboard_alone(look_at: Callable[..., Watch], kitchen: Kitchen) -> None:
    watch = look_at()
    page = watch.page
    page.goto(kitchen.url)
    go_to(page, "#content")
    page.keyboard.press("Enter")  # the way past the navigation
    go_to(page, f"functions/{REVIEW}")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(REVIEW)
    go_to(page, "try-text")
    page.keyboard.type("dry rice")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page.locator("#answer .said")).to_contain_text(label_of("dry rice"))


def go_to(page: Page, wanted: str, most: int = 60) -> None:
    """Press Tab until what is focused is that: by its id, or by where it leads."""
    for _ in range(most):
        page.keyboard.press("Tab")
        focused = page.evaluate("(one => [one.id, one.getAttribute('href') ?? ''])(document.activeElement)")
        if wanted == focused[0] or focused[1].endswith(wanted):
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", f"nobody sees that {wanted} is focused"
            return
    raise AssertionError(f"{wanted} is not reached by Tab")


@pytest.mark.parametrize("scripts", [True, False])
def test_a_function_is_rolled_back(look_at: Callable[..., Watch], kitchen: Kitchen, scripts: bool) -> None:
    watch = look_at(scripts=scripts)
    watch.say_yes()
    page = open_function(watch, kitchen, FOOD)
    version = int(page.locator("section:has(#versions) tbody th").first.inner_text())
    page.get_by_role("button", name="Roll back").click()
    expect(page.locator(".heading")).to_contain_text(f"version {version + 1}")
    assert page.url.endswith(f"/functions/{FOOD}#versions")
    assert len(watch.asked) == (1 if scripts else 0)
