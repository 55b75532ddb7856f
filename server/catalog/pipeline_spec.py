"""From `pipeline` of a function's specification to what it is made of. Pure.

[{"function": "udf_tray"}, {"crop": {"margin": 0.1}}, {"function": "udf_food_name"}]: each function by its
name, or as {"function": name, "version": n}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from gpu_worker.wire.columns import BOXES, JSON, TEXT
from server.catalog.functions import Function, ModelVersion
from server.catalog.pipeline import Pipeline
from server.ensemble.crop import Crop
from server.errors import BadOption, UnknownFunction
from server.scheduling.splitting import SPLITS

__all__ = ["Stages", "is_pipeline", "pipeline_function", "pipeline_spec", "stages_named"]

_FIELDS = ("pipeline", "slo_ms", "answer_cache", "goal_split")
_MOST_STAGES = 8
_BY_DEFAULT = "none"  # of SPLITS: as `make bench-pipelines` has it
_SHORTEST_MS, _LONGEST_MS = 0.001, 86_400_000.0


class Stages(Protocol):
    """Functions by name, and bare models: a catalog, or as much of it as somebody sees."""

    def resolve(self, name: str, version: str | None = None) -> Function:
        """The function in that version, the current one if none is named. Raises `ServiceError`."""
        ...

    def functions(self) -> list[list[Function]]:
        """The deployed functions, by name, each with its served versions."""
        ...


def is_pipeline(spec: Mapping[str, Any]) -> bool:
    """Whether a specification is a pipeline's."""
    return spec.get("pipeline") is not None


def stages_named(spec: Mapping[str, Any]) -> set[str]:
    """The functions and models that a stored specification asks as stages; none of what is no pipeline."""
    told = spec.get("pipeline")
    stages = told if isinstance(told, list) else []
    return {str(stage["function"]) for stage in stages if isinstance(stage, Mapping) and "function" in stage}


def pipeline_spec(name: str, body: Mapping[str, Any], functions: Stages) -> dict[str, Any]:
    """The specification that a PUT asks for, its stages' versions pinned.

    Raises `BadOption`, and what `functions` raises for a stage that is not there.
    """
    told = {field: value for field, value in body.items() if value is not None}
    unknown = sorted(told.keys() - set(_FIELDS))
    if unknown:
        raise BadOption(
            f"function {name}: a pipeline has no {unknown[0]!r}, which is its stages' own to say; it has "
            f"{', '.join(_FIELDS)}"
        )
    stages, crop = _parts(name, told["pipeline"], functions)
    pipeline = Pipeline(tuple(stages), crop, _split(name, told.get("goal_split")))
    _check_fit(name, pipeline, functions)
    _slo_ms(name, told.get("slo_ms"), stages)
    _answer_cache(name, told.get("answer_cache"))
    return {**told, "pipeline": pipeline.told()}


def pipeline_function(name: str, version: int, spec: Mapping[str, Any], functions: Stages) -> Function:
    """The function that a specification describes. Raises as `pipeline_spec`."""
    stages, crop = _parts(name, spec["pipeline"], functions)
    pipeline = Pipeline(tuple(stages), crop, _split(name, spec.get("goal_split")))
    _check_fit(name, pipeline, functions)
    return Function(
        name=name,
        version=version,
        members=_members(stages),
        form=stages[0].form,
        combine="",
        slo_ms=_slo_ms(name, spec.get("slo_ms"), stages),
        max_batch=stages[0].max_batch,
        batch_sizes=stages[0].batch_sizes,
        media_roots=stages[0].media_roots,
        answer_cache=_answer_cache(name, spec.get("answer_cache")),
        pipeline=pipeline,
    )


def _parts(name: str, raw: object, functions: Stages) -> tuple[list[Function], Crop | None]:
    if not isinstance(raw, list):
        raise BadOption(f"function {name}: 'pipeline' must be a list of stages, not {str(raw)[:100]!r}")
    stages: list[Function] = []
    crop: Crop | None = None
    for number, entry in enumerate(raw, 1):
        if isinstance(entry, Mapping) and "crop" in entry:
            if len(stages) != 1 or crop is not None or number == len(raw):
                raise BadOption(
                    f"function {name}: stage {number} crops; one crop stands between the first function, "
                    "which finds boxes, and the second"
                )
            crop = _crop(name, number, entry)
        else:
            stages.append(_function(name, number, entry, functions))
    if not 2 <= len(stages) <= _MOST_STAGES:
        raise BadOption(
            f"function {name}: a pipeline has 2 to {_MOST_STAGES} functions, and {len(stages)} are named"
        )
    return stages, crop


def _function(name: str, number: int, entry: object, functions: Stages) -> Function:
    if isinstance(entry, str):
        entry = {"function": entry}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("function"), str):
        raise BadOption(
            f'function {name}: stage {number} must be {{"function": "name"}} or {{"crop": {{}}}}, '
            f"not {str(entry)[:100]!r}"
        )
    unknown = sorted(set(map(str, entry)) - {"function", "version"})
    if unknown:
        raise BadOption(
            f"function {name}: stage {number} has no field {unknown[0]!r}; it has function, version"
        )
    stage, version = entry["function"], entry.get("version")
    if stage == name:
        raise BadOption(f"function {name}: stage {number} is {name} itself")
    if isinstance(version, bool) or not (version is None or isinstance(version, int)):
        raise BadOption(f"function {name}: 'version' of stage {number} must be a whole number")
    try:
        found = functions.resolve(stage, None if version is None else str(version))
    except UnknownFunction as exc:
        there = [each[-1].name for each in functions.functions() if each[-1].pipeline is None]
        raise UnknownFunction(
            f"function {name}: stage {number}: {exc.message}; there are {_listed(there) or 'none'}"
        ) from exc
    if found.pipeline is not None:
        inner = ", ".join(each.name for each in found.pipeline.stages)
        raise BadOption(
            f"function {name}: stage {number}, {stage}, is a pipeline itself; name its stages: {inner}"
        )
    return found


def _crop(name: str, number: int, entry: Mapping[Any, Any]) -> Crop:
    given, where = entry["crop"], f"function {name}: stage {number}"
    if len(entry) > 1 or not isinstance(given, Mapping):
        raise BadOption(f'{where} must be {{"crop": {{"margin": 0.1}}}}, not {str(dict(entry))[:100]!r}')
    unknown = sorted(set(map(str, given)) - {"margin", "min_score", "labels", "most"})
    if unknown:
        raise BadOption(
            f"{where}: 'crop' has no field {unknown[0]!r}; it has margin, min_score, labels, most"
        )
    labels, most = given.get("labels") or [], given.get("most", 0)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise BadOption(f"{where}: 'labels' of 'crop' must be a list of labels, not {str(labels)[:100]!r}")
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        raise BadOption(f"{where}: 'most' of 'crop' must be a whole number, not {str(most)[:100]!r}")
    numbers = (_number(where, given, "margin"), _number(where, given, "min_score"))
    return Crop(*numbers, tuple(labels), most)


def _number(where: str, given: Mapping[Any, Any], field: str) -> float:
    value = given.get(field, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise BadOption(
            f"{where}: {field!r} of 'crop' must be a number from 0 to 1, not {str(value)[:100]!r}"
        )
    return float(value)


def _check_fit(name: str, pipeline: Pipeline, functions: Stages) -> None:
    """Whether each stage takes what the one before it answers. Raises `BadOption`, which says what would."""
    crop = pipeline.crop

    def such_as(fits: Callable[[Function], bool]) -> str:
        there = [each[-1].name for each in functions.functions() if each[-1].pipeline is None]
        fitting = [each for each in there if fits(functions.resolve(each))]
        return f", such as {_listed(fitting)}" if fitting else ""

    for at, (before, after) in enumerate(zip(pipeline.stages, pipeline.stages[1:], strict=False), 1):
        where = f"function {name}: {pipeline.name_of(at)}"
        value = before.outputs[0]
        if crop is not None and at == 1:
            if value.content != BOXES:
                raise BadOption(
                    f"function {name}: what {before.name} answers, {before.task.name}, has no boxes to crop; "
                    f"name a function of object-detection before the crop{such_as(_finds_boxes)}"
                )
            unknown = sorted(set(crop.labels) - set(before.classes))
            if unknown:
                raise BadOption(
                    f"function {name}: {before.name} finds no {unknown[0]!r}, which is among 'labels' of "
                    f"'crop'; it finds {_listed(before.classes)}"
                )
            if "image" not in after.forms:
                raise BadOption(
                    f"{where} takes {', '.join(after.forms)}, and a crop gives pictures; name a function of "
                    f"pictures after it{such_as(_takes_pictures)}"
                )
        elif value.content == BOXES:
            raise BadOption(
                f'{where} follows {before.name}, which finds boxes; put {{"crop": {{}}}} between them'
            )
        elif value.datatype != TEXT or value.content not in ("", JSON):
            raise BadOption(
                f"{where} follows {before.name}, which answers {value.name}, and no text; name a function "
                "whose value is a text (classification, text-generation) before it"
            )
        elif "text" not in after.forms:
            raise BadOption(
                f"{where} takes {', '.join(after.forms)}, and {before.name} answers a text; name a function "
                f"of texts after it{such_as(_takes_texts)}"
            )


def _finds_boxes(function: Function) -> bool:
    return function.outputs[0].content == BOXES


def _takes_pictures(function: Function) -> bool:
    return "image" in function.forms


def _takes_texts(function: Function) -> bool:
    return "text" in function.forms


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", …" if len(names) > 10 else "")


def _split(name: str, raw: object) -> str:
    if raw is None:
        return _BY_DEFAULT
    if not isinstance(raw, str) or raw not in SPLITS:
        raise BadOption(f"function {name}: 'goal_split' must be one of {', '.join(SPLITS)}, not {raw!r}")
    return raw


def _slo_ms(name: str, raw: object, stages: Sequence[Function]) -> float:
    """Its own, else its stages' together."""
    if raw is None:
        return min(_LONGEST_MS, math.fsum(stage.slo_ms for stage in stages))
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not _SHORTEST_MS <= raw <= _LONGEST_MS:
        raise BadOption(
            f"function {name}: 'slo_ms' must be a number from {_SHORTEST_MS:g} to {_LONGEST_MS:g}, "
            f"not {raw!r}"
        )
    return float(raw)


def _answer_cache(name: str, raw: object) -> bool | None:
    if raw is None or isinstance(raw, bool):
        return raw
    raise BadOption(f"function {name}: 'answer_cache' must be true or false, not {raw!r}")


def _members(stages: Sequence[Function]) -> tuple[ModelVersion, ...]:
    """All models that answer, each once, in the order of the stages."""
    return tuple({model.key: model for stage in stages for model in stage.asked}.values())
