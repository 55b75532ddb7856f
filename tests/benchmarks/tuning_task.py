"""What the tuning benchmark trains: three small image sets, and a perceptron in numpy that is fast enough for
hundreds of studies. The knobs are those of Rafiki §7.1.1; the learning rate stays until a trial cools, as the
shipped trainer's does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from server.training.studies.hyperspace import HyperSpace

Array = NDArray[np.float32]
HIDDEN = (32,)
BATCH_ROWS = 50


@dataclass(frozen=True)
class Rows:
    inputs: Array
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """Rows to train on, to choose by, and to judge by in the end."""

    name: str
    train: Rows
    validation: Rows
    test: Rows
    classes: int = 10


@dataclass
class State:
    """All weights, layer by layer, and then all biases, in one row of numbers, and a momentum for each. The
    weights alone are what another trial takes over. sizes: of the layers, the inputs first.
    """

    sizes: tuple[int, ...]
    parameters: Array
    momentum: Array

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.parameters).all())


def space() -> HyperSpace:
    knobs = HyperSpace()
    knobs.add_range_knob("learning_rate", "float", 1e-3, 1.0, log=True, default=0.05)
    knobs.add_range_knob("momentum", "float", 0.0, 0.99, default=0.9)
    knobs.add_range_knob("weight_decay", "float", 1e-6, 1e-1, log=True, default=1e-4)
    knobs.add_range_knob("dropout", "float", 0.0, 0.7, default=0.1)
    knobs.add_range_knob("init_std", "float", 0.005, 1.0, log=True, branching="fixed", default=0.1)
    return knobs


def tasks(seed: int) -> list[Task]:
    """Digits, split anew for each seed; synthetic images of two difficulties, drawn anew for each seed."""
    return [
        _digits(seed),
        _synthetic("synthetic", seed, noise=1.0),
        _synthetic("synthetic-hard", seed, noise=1.5),
    ]


def begin(task: Task, knobs: Mapping[str, float], random: np.random.Generator) -> State:
    sizes = (task.train.inputs.shape[1], *HIDDEN, task.classes)
    weights = [
        random.normal(0.0, knobs["init_std"], rows * columns).astype(np.float32)
        for rows, columns in itertools.pairwise(sizes)
    ]
    return _at_rest(sizes, np.concatenate([*weights, np.zeros(sum(sizes[1:]), np.float32)]))


def warm(parent: State) -> State:
    """The weights of another trial, without its momentum."""
    return _at_rest(parent.sizes, parent.parameters.copy())


def copy(state: State) -> State:
    return State(state.sizes, state.parameters.copy(), state.momentum.copy())


def train_epoch(
    state: State, task: Task, knobs: Mapping[str, float], epoch: int, seed: int, cools: tuple[int, int] | None
) -> None:
    """One pass over the training rows by SGD with momentum; `epoch` counts from 1.

    cools: the epochs after which the rate falls along a cosine, and those after which it is 0.
    """
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(task.train.labels))
    inputs, labels = (
        task.train.inputs[order],
        np.eye(task.classes, dtype=np.float32)[task.train.labels[order]],
    )
    keep = np.float32(1 - knobs["dropout"])
    # What a hidden unit's value is multiplied by, in each row.
    kept = [
        (random.random((len(order), width), np.float32) < keep).astype(np.float32) / keep
        for width in state.sizes[1:-1]
    ]
    momentum, decay = np.float32(knobs["momentum"]), np.float32(knobs["weight_decay"])
    weights, biases = _layers(state.sizes, state.parameters)
    gradient = np.empty_like(state.parameters)
    of_weights, of_biases = _layers(state.sizes, gradient)
    decays = sum(each.size for each in weights)
    for first in range(0, len(order), BATCH_ROWS):
        rows = slice(first, first + BATCH_ROWS)
        fall = 0.0 if cools is None else (epoch - 1 + first / len(order) - cools[0]) / (cools[1] - cools[0])
        rate = np.float32(knobs["learning_rate"] * 0.5 * (1 + math.cos(math.pi * fall)))
        layers = [inputs[rows]]
        for place, masks in enumerate(kept):
            layer = np.maximum(layers[-1] @ weights[place] + biases[place], 0)
            layer *= masks[rows]
            layers.append(layer)
        error = _softmax(layers[-1] @ weights[-1] + biases[-1])
        error -= labels[rows]
        error /= np.float32(len(error))
        for place in range(len(weights) - 1, -1, -1):
            np.matmul(layers[place].T, error, out=of_weights[place])
            np.add.reduce(error, axis=0, out=of_biases[place])
            if place:
                # Where dropout or the rectifier made zeros, nothing flows back.
                error = error @ weights[place].T
                error *= layers[place] > 0
                error *= kept[place - 1][rows]
        gradient[:decays] += decay * state.parameters[:decays]
        state.momentum *= momentum
        state.momentum += gradient
        state.parameters -= rate * state.momentum


def probabilities(state: State, rows: Rows) -> Array:
    """[n, classes]; a net that diverged gives equal chances to all."""
    layer = rows.inputs
    weights, biases = _layers(state.sizes, state.parameters)
    for of_layer, offsets in zip(weights[:-1], biases[:-1], strict=True):
        layer = np.maximum(layer @ of_layer + offsets, 0)
    return _softmax(np.nan_to_num(layer @ weights[-1] + biases[-1], posinf=0, neginf=0))


def accuracy(scores: Array, rows: Rows) -> float:
    return float((scores.argmax(axis=1) == rows.labels).mean())


def _at_rest(sizes: tuple[int, ...], parameters: Array) -> State:
    return State(sizes, parameters, np.zeros_like(parameters))


def _layers(sizes: tuple[int, ...], parameters: Array) -> tuple[list[Array], list[Array]]:
    """The weights and the biases of each layer, as views."""
    weights, biases, at = [], [], 0
    for rows, columns in itertools.pairwise(sizes):
        weights.append(parameters[at : at + rows * columns].reshape(rows, columns))
        at += rows * columns
    for columns in sizes[1:]:
        biases.append(parameters[at : at + columns])
        at += columns
    return weights, biases


def _softmax(logits: Array) -> Array:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores: Array = shifted / shifted.sum(axis=1, keepdims=True)
    return scores


def _digits(seed: int) -> Task:
    data = load_digits()
    order = np.random.default_rng((seed, 1)).permutation(len(data.target))
    inputs = (data.data[order] / 8 - 1).astype(np.float32)
    rows = Rows(inputs, data.target[order].astype(np.int64))
    return _split("digits", rows, train=400, validation=500)


def _synthetic(name: str, seed: int, *, noise: float) -> Task:
    """Ten smooth prototypes of 12x12 pixels, each in two forms; moved by up to two pixels, in noise."""
    random = np.random.default_rng((seed, 2))
    count, side = 2400, 12
    coarse = random.normal(size=(10, 2, 5, 5))
    prototypes = np.repeat(np.repeat(coarse, 3, axis=2), 3, axis=3)[..., :side, :side]
    labels = random.integers(10, size=count)
    images = prototypes[labels, random.integers(2, size=count)]
    moves = random.integers(-2, 3, size=(count, 2))
    moved = [np.roll(image, tuple(move), axis=(0, 1)) for image, move in zip(images, moves, strict=True)]
    inputs = (np.stack(moved) + random.normal(scale=noise, size=(count, side, side))).reshape(count, -1)
    return _split(name, Rows((inputs / (1 + noise)).astype(np.float32), labels), train=400, validation=500)


def _split(name: str, rows: Rows, *, train: int, validation: int) -> Task:
    def part(begin: int, end: int) -> Rows:
        return Rows(rows.inputs[begin:end], rows.labels[begin:end])

    chosen = train + validation
    return Task(name, part(0, train), part(train, chosen), part(chosen, len(rows.labels)))
