"""The text models: a text's answer is its own, whatever the language, the length, and the texts beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker.device import find_device
from gpu_worker.networks.build import build_module
from gpu_worker.networks.text_network import TextNetwork
from gpu_worker.zoo import TEXT_ARCHITECTURES
from gpu_worker.zoo.text import byte_tokens, ngram_tokens

CPU = find_device("cpu", threads=1)
TEXTS = ["", " ", "the soup was fine", "素晴らしい麺", "суп", "👩‍🍳", "x", "long " * 50_000, "\0\t\n"]


@pytest.fixture(params=sorted(TEXT_ARCHITECTURES))
def network(request: pytest.FixtureRequest) -> TextNetwork:
    return TextNetwork(build_module(request.param, 3, {}), CPU)


def scores(network: TextNetwork, texts: list[str]) -> np.ndarray[Any, Any]:
    return network.scores([text.encode() for text in texts], lambda: False)


def test_every_text_has_an_answer_and_it_is_its_own(network: TextNetwork):
    together = scores(network, TEXTS)
    assert together.shape == (len(TEXTS), 3)
    assert together.sum(axis=1) == pytest.approx(1.0, abs=1e-5)
    for text, row in zip(TEXTS, together, strict=True):
        assert scores(network, [text])[0] == pytest.approx(row, abs=1e-5), repr(text[:20])


def test_texts_for_which_memory_is_short_run_in_smaller_batches(monkeypatch: pytest.MonkeyPatch):
    network = TextNetwork(build_module("fasttext", 3, {}), CPU)
    expected = scores(network, TEXTS)
    forward: Callable[[torch.Tensor], torch.Tensor] = network._module.forward

    def cramped(tokens: torch.Tensor) -> torch.Tensor:
        if len(tokens) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(tokens)

    monkeypatch.setattr(network._module, "forward", cramped)
    np.testing.assert_allclose(scores(network, TEXTS), expected, atol=1e-5)


def test_only_a_texts_beginning_is_read(network: TextNetwork):
    long, longer = scores(network, ["so good " * 5_000 + "bad", "so good " * 50_000])
    assert long == pytest.approx(longer, abs=1e-6)


def test_different_texts_have_different_answers(network: TextNetwork):
    one, other = scores(network, ["the soup was fine", "the soup was ghastly"])
    assert np.abs(one - other).max() > 1e-6


def test_bytes_are_tokens_and_nothing_is_zero():
    assert byte_tokens(["ab", "é", ""], 4).tolist() == [[98, 99, 0, 0], [196, 170, 0, 0], [0, 0, 0, 0]]


def test_words_pairs_and_parts_of_words_are_tokens_and_case_is_none():
    plain = ngram_tokens(["Good soup"], length=99, buckets=1000, subword=0)
    assert plain.shape == (1, 3), "two words and their pair"
    assert plain.tolist() == ngram_tokens(["good SOUP"], length=99, buckets=1000, subword=0).tolist()
    parts = ngram_tokens(["good"], length=99, buckets=1000, subword=4)
    assert parts.shape == (1, 4), "the word, <goo, good, ood>"
    assert ngram_tokens(["", ""], length=99, buckets=1000, subword=4).tolist() == [[0], [0]]
    assert ngram_tokens(["a b c d"], length=2, buckets=1000, subword=4).shape == (1, 2)
    assert 1 <= int(parts.min()) <= int(parts.max()) <= 1000
