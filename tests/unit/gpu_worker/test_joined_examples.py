"""Splits that are taught together: each row is the one that its own split has."""

from __future__ import annotations

import numpy as np
import torch

from gpu_worker.train.augment import Augment
from gpu_worker.train.images import ImageExamples
from gpu_worker.train.joined_examples import JoinedExamples, taught_of
from gpu_worker.train.spec import TrainSpec
from gpu_worker.train.texts import TextExamples

CPU = torch.device("cpu")
STILL = TrainSpec("small_cnn", augment=Augment(flip=False, shift=0.0, zoom=0.0, colour=0.0))


def texts(*lengths: int) -> TextExamples:
    tokens = np.concatenate([np.full(length, length, np.int32) for length in lengths])
    labels = torch.arange(len(lengths))
    return TextExamples(tokens, np.cumsum(lengths), labels, ("a", "b", "c"), 1)


def test_rows_keep_their_order_whatever_part_they_are_of():
    both = JoinedExamples([texts(1, 2, 3), texts(5, 4)])
    assert len(both) == 5
    assert both.labels.tolist() == [0, 1, 2, 0, 1]
    rows = torch.tensor([3, 0, 4, 2])
    found = both.varied(rows, TrainSpec("fasttext", forget=0.0), torch.Generator(), CPU)
    assert found.max(dim=1).values.tolist() == [5, 1, 4, 3]
    assert found.shape == (4, 5), "the shorter ones have 0 behind them"
    assert (found > 0).sum(dim=1).tolist() == [5, 1, 4, 3]


def test_plain_rows_reach_over_the_border_of_two_parts():
    both = JoinedExamples([texts(1, 2, 3), texts(5, 4)])
    spec = TrainSpec("fasttext")
    assert both.plain(2, 4, spec, CPU).max(dim=1).values.tolist() == [3, 5]
    assert both.plain(3, 128, spec, CPU).max(dim=1).values.tolist() == [5, 4]
    assert list(both.content()) == [*texts(1, 2, 3).content(), *texts(5, 4).content()]


def test_pictures_are_joined_as_they_are():
    pixels = torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(4, 8, 8, 3).contiguous()
    labels = torch.arange(4)
    whole = ImageExamples(pixels, labels, ("a", "b", "c", "d"))
    both = JoinedExamples(
        [ImageExamples(pixels[part], labels[part], whole.classes) for part in (slice(0, 1), slice(1, 4))]
    )
    rows = torch.tensor([2, 0, 3])
    ours, theirs = (each.varied(rows, STILL, torch.Generator(), CPU) for each in (both, whole))
    assert torch.equal(ours, theirs)
    assert torch.equal(both.plain(0, 4, STILL, CPU), whole.plain(0, 4, STILL, CPU))


def test_rows_of_a_class_that_nobody_shows_are_not_taught():
    both = JoinedExamples([texts(1, 2, 3), texts(5, 4)])
    assert taught_of(both) is both
    both.labels = torch.tensor([0, -1, 2, -1, 1])
    taught = taught_of(both)
    assert taught.labels.tolist() == [0, 2, 1]
    spec = TrainSpec("fasttext", forget=0.0)
    found = taught.varied(torch.tensor([2, 0, 1]), spec, torch.Generator(), CPU)
    assert found.max(dim=1).values.tolist() == [4, 1, 3]
    assert taught.plain(1, 128, spec, CPU).max(dim=1).values.tolist() == [3, 4]
    assert list(taught.content()) != list(both.content())
