"""A small perceptron that learns: tanh between its layers, steps by Adam (Kingma and Ba 2015). numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Adam", "Perceptron"]

Floats = NDArray[np.float64]


class Adam:
    """Steps of the same kind for each of several arrays, which it changes in place."""

    def __init__(self, arrays: Sequence[Floats]) -> None:
        self._arrays = list(arrays)
        self._means = [np.zeros_like(each) for each in arrays]
        self._squares = [np.zeros_like(each) for each in arrays]
        self._steps = 0

    def descend(self, gradients: Sequence[Floats], rate: float, longest: float = 1.0) -> None:
        """One step down. longest: of the gradients together; a longer one is shortened."""
        length = float(np.sqrt(sum(float((each**2).sum()) for each in gradients)))
        shrink = min(1.0, longest / max(length, 1e-12))
        self._steps += 1
        first, second = 1 - 0.9**self._steps, 1 - 0.999**self._steps
        for array, mean, square, gradient in zip(
            self._arrays, self._means, self._squares, gradients, strict=True
        ):
            mean += 0.1 * (shrink * gradient - mean)
            square += 0.001 * ((shrink * gradient) ** 2 - square)
            array -= rate * (mean / first) / (np.sqrt(square / second) + 1e-8)


class Perceptron:
    """widths: of inputs, hidden layers and outputs. last: how large the outputs are at first."""

    def __init__(self, random: np.random.Generator, widths: Sequence[int], last: float = 1.0) -> None:
        scales = [1.0] * (len(widths) - 2) + [last]
        self.weights: list[Floats] = [
            random.normal(size=(wide, following)) * scale / np.sqrt(wide)
            for wide, following, scale in zip(widths, widths[1:], scales, strict=False)
        ]
        self.biases: list[Floats] = [np.zeros(following) for following in widths[1:]]

    @property
    def arrays(self) -> list[Floats]:
        """What is learned."""
        return [*self.weights, *self.biases]

    def values(self, inputs: Floats) -> list[Floats]:
        """Of every layer, the inputs first and the outputs last. inputs: [rows, inputs]."""
        values = [inputs]
        for weights, biases in zip(self.weights[:-1], self.biases[:-1], strict=True):
            values.append(np.tanh(values[-1] @ weights + biases))
        values.append(values[-1] @ self.weights[-1] + self.biases[-1])
        return values

    def gradients(self, values: Sequence[Floats], slopes: Floats) -> list[Floats]:
        """Of `arrays`. values: as `values` said; slopes: of the loss by each output, [rows, outputs]."""
        of_weights: list[Floats] = []
        of_biases: list[Floats] = []
        for at in range(len(self.weights) - 1, -1, -1):
            of_weights.append(values[at].T @ slopes)
            of_biases.append(slopes.sum(axis=0))
            slopes = (slopes @ self.weights[at].T) * (1 - values[at] ** 2)
        return [*reversed(of_weights), *reversed(of_biases)]
