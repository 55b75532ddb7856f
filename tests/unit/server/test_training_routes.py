"""What the routes of training say: lists in pages, and answers that fit on a page."""

from __future__ import annotations

import itertools

import pytest

from server.errors import BadOption
from server.routes.training import _telling, _within


@pytest.mark.parametrize(("members", "told"), [(1, 1), (2, 3), (3, 7), (4, 9), (7, 15)])
def test_a_deployment_of_many_members_does_not_list_all_their_subsets(members: int, told: int) -> None:
    names = [f"m{place}" for place in range(members)]
    subsets = {
        "+".join(some): 0.5 for size in range(1, members + 1) for some in itertools.combinations(names, size)
    }
    shown = _telling(subsets)
    assert len(shown) == told
    assert shown.keys() >= {*names, "+".join(names)}


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_a_page_has_a_bound(limit: int) -> None:
    with pytest.raises(BadOption, match="from 1 to 1000"):
        _within(limit)
