"""The pages of models, data and training on a real server with a job that was really trained."""

from __future__ import annotations

import http.client
import io
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from PIL import Image

from tests.browser.kitchen import DATASET, FOOD, REVIEW, Kitchen, furnished, kitchen_like

__all__ = ["furnished"]  # a fixture

_ASKED_S = 120.0


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    headers: http.client.HTTPMessage

    @property
    def text(self) -> str:
        return self.body.decode()


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory, furnished: Path) -> Iterator[Kitchen]:
    with kitchen_like(furnished, tmp_path_factory.mktemp("kitchen")) as running:
        yield running


def ask(kitchen: Kitchen, path: str, form: dict[str, str] | None = None) -> Reply:
    """GET, or POST where there is a form; redirections are not followed."""
    connection = http.client.HTTPConnection("127.0.0.1", kitchen.server.port, timeout=300)
    try:
        if form is None:
            connection.request("GET", f"/{path}")
        else:
            csrf = _csrf(kitchen)
            connection.request(
                "POST",
                f"/{path}",
                urlencode({"csrf": csrf, **form}),
                {"Content-Type": "application/x-www-form-urlencoded"},
            )
        reply = connection.getresponse()
        return Reply(reply.status, reply.read(), reply.msg)
    finally:
        connection.close()


def _csrf(kitchen: Kitchen) -> str:
    found = re.search(r'<meta name="csrf" content="([^"]*)"', ask(kitchen, "training").text)
    assert found is not None
    return found[1]


def page(kitchen: Kitchen, path: str) -> str:
    reply = ask(kitchen, path)
    assert reply.status == 200, reply.text
    assert "style=" not in reply.text, "the content security policy would drop it"
    assert len(reply.body) < 100_000
    return reply.text


def confusion(kitchen: Kitchen) -> str:
    """The page, once the function was asked."""
    path = f"datasets/{DATASET}/confusion"
    assert ask(kitchen, path, {"function": FOOD}).status == 303
    deadline_s = time.monotonic() + _ASKED_S
    while "Truth and answers" not in (text := page(kitchen, f"{path}?function={FOOD}")):
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    return text


def test_the_list_of_models_says_where_each_is_and_who_uses_it(kitchen: Kitchen) -> None:
    text = page(kitchen, "models")
    assert "food_" in text
    assert f"functions/{FOOD}" in text
    assert "Loads and evictions" in text


def test_a_models_card_shows_how_long_its_batches_take_and_what_moved(kitchen: Kitchen) -> None:
    text = page(kitchen, "models/review")
    assert "Time of a batch" in text
    assert f"functions/{REVIEW}" in text
    assert 'class="moment load"' in text


def test_a_model_that_there_is_not_is_a_page_that_says_so(kitchen: Kitchen) -> None:
    reply = ask(kitchen, "models/nobody")
    assert reply.status == 404
    assert "there is no model" in reply.text


def test_data_and_training_lists_datasets_and_jobs(kitchen: Kitchen) -> None:
    text = page(kitchen, "training")
    assert f"datasets/{DATASET}" in text
    assert f"jobs/{kitchen.job}" in text


def test_a_dataset_shows_its_classes_with_pictures_that_can_be_seen(kitchen: Kitchen) -> None:
    text = page(kitchen, f"datasets/{DATASET}")
    pictures = re.findall(rf'src="\.\./(datasets/{DATASET}/pictures/[^"]+)"', text)
    assert len(pictures) == 12  # six of each class
    for path in pictures:
        reply = ask(kitchen, path)
        assert (reply.status, reply.headers["Content-Type"]) == (200, "image/jpeg")
        assert Image.open(io.BytesIO(reply.body)).size == (24, 24)


@pytest.mark.security
def test_only_rows_of_the_snapshot_are_shown_as_pictures(kitchen: Kitchen) -> None:
    text = page(kitchen, f"datasets/{DATASET}")
    found = re.search(rf"datasets/{DATASET}/pictures/([0-9a-f]+)/", text)
    assert found is not None
    for path in (f"{found[1]}/100000", f"{found[1]}/-1", "0123456789abcdef/0", f"{found[1]}/x"):
        assert ask(kitchen, f"datasets/{DATASET}/pictures/{path}").status in (400, 404)
    assert ask(kitchen, f"datasets/{quote('../food', safe='')}/pictures/{found[1]}/0").status == 404


def test_a_job_shows_curves_trials_and_what_may_be_done_with_it(kitchen: Kitchen) -> None:
    text = page(kitchen, f"jobs/{kitchen.job}")
    assert "Validation accuracy" in text
    assert 'class="lines parallel"' in text
    assert f"jobs/{kitchen.job}/extend" in text
    assert f"jobs/{kitchen.job}/deploy" in text
    assert "The same in every trial" not in page(kitchen, f"jobs/{kitchen.job}?knobs=all")


def test_what_cannot_be_done_with_a_job_is_said_on_a_page(kitchen: Kitchen) -> None:
    reply = ask(kitchen, f"jobs/{kitchen.job}/pause", {})
    assert reply.status == 400
    assert "only a job that runs can be paused" in reply.text
    assert ask(kitchen, f"jobs/{kitchen.job}/extend", {"budget": "3"}).status == 400


def test_a_cell_of_the_confusions_opens_the_rows_that_were_labelled_wrongly(kitchen: Kitchen) -> None:
    text = confusion(kitchen)
    cells = re.findall(r'<a href="\.\./\.\./(datasets/food/confusion\?[^"#]+)#rows"', text)
    assert cells
    behind = page(kitchen, cells[0].replace("&amp;", "&"))
    assert f"datasets/{DATASET}/pictures/" in behind.partition('id="rows"')[2]


def test_a_function_that_does_not_take_the_rows_is_not_asked(kitchen: Kitchen) -> None:
    reply = ask(kitchen, f"datasets/{DATASET}/confusion", {"function": REVIEW})
    assert reply.status == 400
    assert "takes text" in reply.text


def test_a_job_that_is_no_better_is_not_deployed_and_the_page_says_why(kitchen: Kitchen) -> None:
    reply = ask(
        kitchen,
        f"jobs/{kitchen.job}/deploy",
        {"function": FOOD, "promote": "if_better", "select": "best", "slo_ms": ""},
    )
    assert reply.status == 200
    assert "stays as it is" in reply.text
    assert "not shown to be better" in reply.text


def test_a_job_is_begun_paused_resumed_and_ended_by_forms(kitchen: Kitchen) -> None:
    begun = ask(kitchen, f"datasets/{DATASET}/train", {"budget": "500 epochs", "metric": "accuracy"})
    assert begun.status == 303
    job = begun.headers["Location"].rpartition("/")[2]
    for order, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        assert ask(kitchen, f"jobs/{job}/{order}", {}).status == 303
        assert f"</span>{state}" in page(kitchen, f"jobs/{job}")


def test_a_pushed_dataset_is_not_refreshed_by_a_form(kitchen: Kitchen) -> None:
    reply = ask(kitchen, f"datasets/{DATASET}/refresh", {})
    assert reply.status == 400
    assert "register it there again" in reply.text
