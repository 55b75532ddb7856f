"""A function that may run any variant of one model: which, and by what is chosen among them row by row.

Its members are the variants, and each row is asked of one: plans of one member, by the policies that select
members (`value`, `gear`, `slackfit`). They go by what held-out rows said of each, and nothing is fitted.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from server.catalog.catalog import Models
from server.catalog.functions import ModelVersion
from server.catalog.variants import HeldOutAccuracy, Variants, variant_model
from server.ensemble.evidence import NOTHING, EvidenceStates, first_states
from server.ensemble.fit import Fit, SubsetFit
from server.errors import BadOption

__all__ = ["among_variants", "one_member_fit"]


def among_variants(
    name: str, body: Mapping[str, Any], models: Models, variants: Variants
) -> tuple[dict[str, Any], Fit]:
    """The body of a deployment that names the variants, and the fit by which they are chosen.

    body: names one model, and under `variants` true, or a list of variants' names. Raises `BadOption`,
    `UnknownFunction`.
    """
    asked, named = body["variants"], body.get("models")
    if asked is not True and not (isinstance(asked, list) and all(isinstance(each, str) for each in asked)):
        raise BadOption(f"function {name}: 'variants' must be true, or a list of variants' names")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        raise BadOption(f"function {name}: 'variants' are of one model; name it alone under 'models'")
    base, slash, number = named[0].rpartition("/")
    if slash and not number.isdecimal():
        raise BadOption(f"function {name}: {named[0]!r} does not name a model")
    model = models.model(base, int(number)) if slash else models.model(number)
    known = {each.name: each for each in variants.of(model.name, model.version)}
    wanted = list(known) if asked is True else list(dict.fromkeys(asked))
    chosen: list[tuple[str, HeldOutAccuracy]] = []
    for each in wanted:
        variant = known.get(each)
        if variant is None or not variant.is_offered or variant.held_out is None:
            if asked is True:
                continue
            why = "is not there" if variant is None else variant.refused or "was not judged on held-out rows"
            raise BadOption(f"function {name}: the variant {each!r} of {model.key} {why}")
        key = models.model(variant_model(model.name, each), model.version).key
        chosen.append((key, variant.held_out))
    if len(chosen) < 2:
        raise BadOption(
            f"function {name}: of {model.key} there are not two variants to choose among that held-out rows "
            f"have judged; make some: ml-udf variants {model.name}"
        )
    spec = {field: value for field, value in body.items() if field != "variants"}
    spec = {"combine": "log_pool", **spec, "models": [key for key, _ in chosen]}
    fit = one_member_fit({key.rpartition("/")[0]: told for key, told in chosen}, model)
    return spec, fit


def one_member_fit(held_out: Mapping[str, HeldOutAccuracy], model: ModelVersion) -> Fit:
    """By model, how often each is right alone; nothing is said of two together, so no row is asked of two."""
    count, rows = len(held_out), min(told.rows for told in held_out.values())
    subsets = tuple(1 << member for member in range(count))
    edges: dict[int, tuple[float, ...]] = {0: (), **dict.fromkeys(subsets, ())}
    right = [told.accuracy for told in held_out.values()]
    evidence = EvidenceStates(
        count,
        subsets,
        edges,
        first_states(subsets, edges),
        np.array([0.0, *right]),
        np.full(1 + count, float(rows)),
        {(NOTHING, member): np.ones((1, 1)) for member in range(count)},
    )
    alone = tuple(SubsetFit((member,), (1.0,), accuracy, 0.0) for member, accuracy in enumerate(right))
    return Fit(tuple(held_out), (1.0,) * count, alone, rows, len(model.classes), evidence)
