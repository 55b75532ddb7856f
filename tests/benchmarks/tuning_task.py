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
HIDDEN = (48, 32)
BATCH_ROWS = 32


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
    """Weights and momentum, layer by layer; the weights alone are what another trial takes over."""

    weights: list[Array]
    biases: list[Array]
    momentum: list[Array]


def space() -> HyperSpace:
    knobs = HyperSpace()
    knobs.add_range_knob("learning_rate", "float", 1e-3, 1.0, log=True, default=0.02)
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
        random.normal(0.0, knobs["init_std"], (rows, columns)).astype(np.float32)
        for rows, columns in itertools.pairwise(sizes)
    ]
    biases = [np.zeros(columns, np.float32) for columns in sizes[1:]]
    return fresh_momentum(weights, biases)


def fresh_momentum(weights: list[Array], biases: list[Array]) -> State:
    return State(weights, biases, [np.zeros_like(each) for each in (*weights, *biases)])


def copy(state: State) -> State:
    parts = (state.weights, state.biases, state.momentum)
    return State(*([each.copy() for each in part] for part in parts))


def train_epoch(
    state: State, task: Task, knobs: Mapping[str, float], epoch: int, seed: int, cools: tuple[int, int] | None
) -> None:
    """One pass over the training rows by SGD with momentum; `epoch` counts from 1.

    cools: the epochs after which the rate falls along a cosine, and those after which it is 0.
    """
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(task.train.labels))
    momentum, decay = np.float32(knobs["momentum"]), np.float32(knobs["weight_decay"])
    keep = 1 - knobs["dropout"]
    for first in range(0, len(order), BATCH_ROWS):
        rows = order[first : first + BATCH_ROWS]
        fall = 0.0 if cools is None else (epoch - 1 + first / len(order) - cools[0]) / (cools[1] - cools[0])
        rate = np.float32(knobs["learning_rate"] * 0.5 * (1 + math.cos(math.pi * fall)))
        gradients = _gradients(state, task.train.inputs[rows], task.train.labels[rows], keep, random)
        parameters = (*state.weights, *state.biases)
        for place, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            if place < len(state.weights):
                gradient = gradient + decay * parameter
            velocity = state.momentum[place]
            velocity *= momentum
            velocity += gradient
            parameter -= rate * velocity


def probabilities(state: State, rows: Rows) -> Array:
    """[n, classes]; a net that diverged gives equal chances to all."""
    layer = rows.inputs
    for weights, biases in zip(state.weights[:-1], state.biases[:-1], strict=True):
        layer = np.maximum(layer @ weights + biases, 0)
    return _softmax(np.nan_to_num(layer @ state.weights[-1] + state.biases[-1], posinf=0, neginf=0))


def accuracy(scores: Array, rows: Rows) -> float:
    return float((scores.argmax(axis=1) == rows.labels).mean())


def _gradients(
    state: State, inputs: Array, labels: NDArray[np.int64], keep: float, random: np.random.Generator
) -> list[Array]:
    layers = [inputs]
    for weights, biases in zip(state.weights[:-1], state.biases[:-1], strict=True):
        layer = np.maximum(layers[-1] @ weights + biases, 0)
        if keep < 1:
            layer *= (random.random(layer.shape, np.float32) < keep) / np.float32(keep)
        layers.append(layer)
    error = _softmax(layers[-1] @ state.weights[-1] + state.biases[-1])
    error[np.arange(len(labels)), labels] -= 1
    error /= np.float32(len(labels))
    of_weights: list[Array] = []
    of_biases: list[Array] = []
    for place in range(len(state.weights) - 1, -1, -1):
        of_weights.insert(0, layers[place].T @ error)
        of_biases.insert(0, error.sum(axis=0))
        if place:
            # Where dropout or the rectifier made zeros, nothing flows back.
            error = (error @ state.weights[place].T) * (layers[place] > 0)
            if keep < 1:
                error /= np.float32(keep)
    return [*of_weights, *of_biases]


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
    count, side = 2700, 12
    coarse = random.normal(size=(10, 2, 5, 5))
    prototypes = np.repeat(np.repeat(coarse, 3, axis=2), 3, axis=3)[..., :side, :side]
    labels = random.integers(10, size=count)
    images = prototypes[labels, random.integers(2, size=count)]
    moves = random.integers(-2, 3, size=(count, 2))
    moved = [np.roll(image, tuple(move), axis=(0, 1)) for image, move in zip(images, moves, strict=True)]
    inputs = (np.stack(moved) + random.normal(scale=noise, size=(count, side, side))).reshape(count, -1)
    return _split(name, Rows((inputs / (1 + noise)).astype(np.float32), labels), train=600, validation=600)


def _split(name: str, rows: Rows, *, train: int, validation: int) -> Task:
    def part(begin: int, end: int) -> Rows:
        return Rows(rows.inputs[begin:end], rows.labels[begin:end])

    chosen = train + validation
    return Task(name, part(0, train), part(train, chosen), part(chosen, len(rows.labels)))
