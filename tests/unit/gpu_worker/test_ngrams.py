"""Texts as hashed n-grams: which there are, how often, and that no text depends on its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.zoo.ngrams import NGrams, Ragged, tfidf


def places(found: Ragged, row: int) -> dict[int, int]:
    start = int(found.ends[row - 1]) if row else 0
    part = slice(start, int(found.ends[row]))
    return dict(zip(found.places[part].tolist(), found.counts[part].tolist(), strict=True))


def test_words_and_pairs_are_counted_without_case():
    words = NGrams(words=1)
    both = NGrams(words=2)
    found = words.of(["Tea, tea & milk", "milk"])
    assert sorted(places(found, 0).values()) == [1, 2]
    assert places(found, 1).keys() < places(found, 0).keys()
    assert len(places(both.of(["tea tea milk"]), 0)) == 4, "tea, milk, tea tea, tea milk"
    assert places(both.of(["tea milk"]), 0) != places(both.of(["milk tea"]), 0)


def test_parts_of_words_tell_texts_without_spaces_apart():
    parts = NGrams(words=0, characters=(2, 3))
    one, other = parts.of(["abcd"]), parts.of(["abxy"])
    shared = places(one, 0).keys() & places(other, 0).keys()
    assert len(shared) == 3, "' a', 'ab' and ' ab'"
    assert len(places(one, 0)) == 9, "5 pairs and 4 triples, the spaces around it with them"


@given(st.lists(st.text(max_size=40), max_size=6))
def test_a_text_has_the_same_n_grams_alone_and_among_others(texts):
    ngrams = NGrams(words=2, characters=(1, 3), buckets=1 << 12)
    together = ngrams.of(texts)
    assert len(together.ends) == len(texts)
    for row, text in enumerate(texts):
        assert places(together, row) == places(ngrams.of([text]), 0)


def test_empty_texts_have_none_and_long_ones_a_beginning():
    ngrams = NGrams()
    assert ngrams.of(["", "!?", "tea"]).ends.tolist() == [0, 0, 1]
    assert ngrams.of([]).ends.tolist() == []
    assert places(ngrams.of(["tea " * 100_000]), 0) == places(ngrams.of(["tea " * 2_048]), 0)


def test_shares_have_length_one_in_each_text():
    found = NGrams().of(["tea and milk", "", "tea"])
    shares = tfidf(found, np.ones(1 << 18, np.float32))
    assert np.square(shares[: found.ends[0]]).sum() == pytest.approx(1)
    assert shares[-1] == pytest.approx(1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"words": 3},
        {"words": 0},
        {"characters": (3, 2)},
        {"characters": (0, 3)},
        {"characters": (1, 9)},
        {"buckets": 1000},
        {"buckets": 1 << 30},
    ],
)
def test_what_cannot_be_hashed_is_refused(wrong):
    with pytest.raises(ValueError, match=r"must be|are needed"):
        NGrams(**wrong)
