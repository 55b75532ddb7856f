"""The training routes as calls: lists that come in pages, what a dataset cannot read."""

from __future__ import annotations

from typing import Any

import pytest

from ml_udf.errors import InputNotFound
from ml_udf.training import TrainingCalls


class Pages:
    """A server with `count` jobs, two on a page; one of before pages existed has them all on one."""

    def __init__(self, count: int, *, old: bool = False) -> None:
        self._ids = list(range(1, count + 1))
        self._old = old
        self.asked: list[str] = []

    def ask(self, request: Any, **_: object) -> dict[str, Any]:
        self.asked.append(request.path)
        path, _, query = request.path.partition("?")
        name = path.rpartition("/")[2]
        if self._old:
            return {name: [{"id": job} for job in self._ids]}
        after = int(query.removeprefix("after=") or 0)
        page = [job for job in self._ids if job > after][:2]
        return {name: [{"id": job} for job in page], "next": page[-1] if len(page) == 2 else None}


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("what", ["jobs", "trials"])
def test_every_page_of_a_list_is_asked_for_once(count: int, what: str) -> None:
    pages = Pages(count)
    listed = getattr(TrainingCalls(pages), what)()  # type: ignore[arg-type]
    assert [entry["id"] for entry in listed] == list(range(1, count + 1))
    assert len(set(pages.asked)) == len(pages.asked)


class Refusing:
    """A server that cannot read an input of a dataset."""

    def ask(self, request: Any, **_: object) -> dict[str, Any]:
        raise InputNotFound("dataset food: 11 of 60 inputs cannot be read")


def test_inputs_that_a_dataset_cannot_read_are_to_be_mended_and_no_setting_skips_them() -> None:
    calls = TrainingCalls(Refusing())  # type: ignore[arg-type]
    for ask in (calls.pull, lambda dataset: calls.push(dataset, [b""])):
        with pytest.raises(InputNotFound, match="11 of 60") as caught:
            ask({"name": "food"})
        assert "--media-root" in caught.value.hint
        assert "'text-classification'" in caught.value.hint
        assert "on_error" not in caught.value.hint


def test_a_server_without_pages_is_asked_once() -> None:
    pages = Pages(5, old=True)
    assert len(TrainingCalls(pages).jobs()) == 5  # type: ignore[arg-type]
    assert len(pages.asked) == 1
