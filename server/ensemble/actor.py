"""The network of `actor_critic`: a small perceptron with a softmax over the subsets of an ensemble's members.

It is trained in the simulator (server/scheduling/simulation/actor_training.py) and kept as plain numbers.
What its inputs mean is the policy's (policies/actor_critic.py). Pure; numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ACCURACY_UNIT", "LOAD_INPUTS", "SIZES", "ActorNetwork", "inputs_for"]

Floats = NDArray[np.float64]

_FORMAT = 1
_MOST_MEMBERS = 6  # of whom every subset was counted
_MOST_UNITS = 256  # of a hidden layer
_MOST_LAYERS = 4
_MOST = 1e4  # of a weight
SIZES = (16, 64)  # b of c(m, b), an input for each member
LOAD_INPUTS = 6
ACCURACY_UNIT = 10.0  # a subset's accuracy counts by tenths


def inputs_for(members: int, devices: int) -> int:
    """How many inputs a network has."""
    return LOAD_INPUTS + devices + len(SIZES) * members


@dataclass(frozen=True, slots=True, eq=False)
class ActorNetwork:
    """For ensembles of so many members, which live on so many devices.

    layers: (weights [in, out], biases [out]) of each, tanh between them; the last one has an output for each
    subset, by its bit mask less one, members the cheapest first · skill: what a tenth of accuracy adds to a
    subset's logit
    """

    members: int
    devices: int
    layers: tuple[tuple[Floats, Floats], ...]
    skill: float = 0.0

    def shares(self, inputs: Floats, accuracies: Floats) -> Floats:
        """How often each subset is asked, [subsets]; they sum to 1.

        inputs: [`inputs_for` the ensemble] · accuracies: [subsets], 0 to 1
        """
        values = inputs
        for weights, biases in self.layers[:-1]:
            values = np.tanh(values @ weights + biases)
        weights, biases = self.layers[-1]
        logits = values @ weights + biases + self.skill * ACCURACY_UNIT * accuracies
        powers = np.exp(logits - logits.max())
        shares: Floats = powers / powers.sum()
        return shares

    def to_json(self) -> dict[str, Any]:
        """As its file keeps it; `from_json` reads it."""
        return {
            "format": _FORMAT,
            "members": self.members,
            "devices": self.devices,
            "skill": self.skill,
            "layers": [
                {"weights": weights.tolist(), "biases": biases.tolist()} for weights, biases in self.layers
            ],
        }

    @classmethod
    def from_json(cls, told: object) -> ActorNetwork:
        """Raises ValueError for what is no network: other shapes, too large, numbers that are none."""
        if not isinstance(told, Mapping) or told.get("format") != _FORMAT:
            raise ValueError(f"it is no actor of format {_FORMAT}")
        layers = told.get("layers")
        members = _whole(told.get("members"), 2, _MOST_MEMBERS, "its members")
        devices = _whole(told.get("devices"), 1, members, "their devices")
        if not isinstance(layers, list) or not 1 <= len(layers) <= _MOST_LAYERS:
            raise ValueError(f"it has no list of 1 to {_MOST_LAYERS} layers")
        width, read = inputs_for(members, devices), []
        for at, layer in enumerate(layers, 1):
            last = at == len(layers)
            if not isinstance(layer, Mapping):
                raise ValueError(f"layer {at} is none")
            units = (1 << members) - 1 if last else _units(layer.get("biases"), at)
            read.append(
                (
                    _numbers(layer.get("weights"), (width, units), f"the weights of layer {at}"),
                    _numbers(layer.get("biases"), (units,), f"the biases of layer {at}"),
                )
            )
            width = units
        skill = float(_numbers(told.get("skill"), (), "its skill"))
        return cls(members, devices, tuple(read), skill)

    def check_fits(self, members: int, devices: int) -> None:
        """Raises ValueError for another size of ensemble than it was trained for."""
        if (members, devices) != (self.members, self.devices):
            raise ValueError(
                f"the actor was trained for {self.members} members on {self.devices} devices, not for "
                f"{members} on {devices}; train one for this function"
            )


def _units(biases: object, at: int) -> int:
    if not isinstance(biases, list) or not 1 <= len(biases) <= _MOST_UNITS:
        raise ValueError(f"layer {at} has no 1 to {_MOST_UNITS} units")
    return len(biases)


def _whole(value: object, least: int, most: int, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{what} are {least} to {most} in number, not {value!r}")
    return value


def _numbers(told: object, shape: tuple[int, ...], what: str) -> Floats:
    rows = told if len(shape) == 2 else [told]
    if not isinstance(rows, list) or (len(shape) == 2 and len(rows) != shape[0]):
        raise ValueError(f"{what} are not {' x '.join(map(str, shape))} numbers")
    for row in rows:
        each = row if shape else [row]
        if not isinstance(each, list) or len(each) != (shape[-1] if shape else 1):
            raise ValueError(f"{what} are not {' x '.join(map(str, shape)) or 'a'} numbers")
        if not all(type(one) in (int, float) and abs(one) <= _MOST for one in each):
            raise ValueError(f"{what} are not all numbers within ±{_MOST:g}")
    return np.array(told, np.float64)
