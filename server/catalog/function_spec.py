"""From the body of `PUT /v1/functions/F` to a function, and from a function to its published form.

Pure: every rule of what makes a valid function stands here. A specification is JSON and pins the versions
of its models; the registry keeps it, and `function_of` reads it back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu_worker.tasks import TASKS, Task, task_named
from gpu_worker.tasks.metrics import METRICS
from gpu_worker.tasks.thresholds import thresholds_from, thresholds_of
from server.catalog.cascade_spec import cascade_asked, check_cascade, proxy_of, refused, shown
from server.catalog.catalog import Models
from server.catalog.functions import INPUT_NAMES, Function, LateMembers, ModelVersion, Proxy
from server.catalog.late_rows import PARITY, LateRows, late_rows_from
from server.catalog.variants import base_of, parity_variant, variant_model, variant_of
from server.catalog.wants import Wants, wants_from
from server.ensemble.actor import ActorNetwork
from server.ensemble.breakage import RefitNote
from server.ensemble.by_plan import members_asked, richest_plan
from server.ensemble.fit import ACCURACY, Fit
from server.ensemble.one_by_one import is_worth_it_alone
from server.ensemble.select import is_policy, select_members
from server.errors import BadOption, UnknownFunction

__all__ = [
    "deployed_form",
    "feedback_form",
    "file_form",
    "function_of",
    "members_named",
    "outputs_of",
    "single_model_function",
    "spec_from",
]

_FIELDS = {
    "actor",
    "models",
    "slo_ms",
    "max_batch",
    "batch_sizes",
    "task",
    "policy",
    "policy_options",
    "select",
    "combine",
    "min_confidence",
    "default",
    "thresholds",
    "input",
    "media_roots",
    "late_members",
    "late_rows",
    "answer_cache",
    "cascade",
    "wants",
}
# Found when it is deployed; in the body where that is an older specification.
_PINNED = {"features", "cascade_found", "candidates"}
# What is said of several members, or of one by its name: of a function by wish, whoever answers it is alone.
_OF_MODELS = ("models", "select", "combine", "actor", "cascade", "thresholds", "late_members", "late_rows")
_BY_DEFAULT = "value"  # selects members where nothing else is said, and evidence is there
_BY_SUBSET = ("value", "gear", "slackfit", "async")  # need not know how sure an answer is
_MAX_MEMBERS = 32
_MAX_BATCH = 65_536


def spec_from(
    name: str,
    body: Mapping[str, Any],
    catalog: Models,
    candidates: Sequence[ModelVersion] = (),
) -> dict[str, Any]:
    """The specification that a PUT asks for, its models' versions pinned.

    candidates: of a function by wish. Raises `BadOption`, `UnknownFunction`.
    """
    unknown = sorted(set(body) - _FIELDS - _PINNED)
    if unknown:
        raise BadOption(
            f"function {name}: unknown field {unknown[0]!r}; there are "
            f"{', '.join(sorted((*_FIELDS, 'variants')))}"
        )
    if (wants := wants_from(name, body.get("wants"))) is not None:
        return _wished(name, body, wants, candidates)
    models = body.get("models")
    if not isinstance(models, list) or not 1 <= len(models) <= _MAX_MEMBERS:
        raise BadOption(f"function {name}: 'models' must be a list of 1 to {_MAX_MEMBERS} models")
    pinned = [_model_named(entry, catalog).key for entry in models]
    if len({key.rpartition("/")[0] for key in pinned}) != len(pinned):
        raise BadOption(f"function {name}: 'models' names a model twice")
    told = {field: value for field, value in body.items() if value is not None and field in _FIELDS}
    cascade = cascade_asked(
        name, told.pop("cascade", None), lambda model: _proxy_named(name, model, catalog).key
    )
    return {**told, "models": pinned, **({} if cascade is None else {"cascade": cascade.to_json()})}


def _wished(
    name: str, body: Mapping[str, Any], wants: Wants, candidates: Sequence[ModelVersion]
) -> dict[str, Any]:
    """The specification of a function by wish."""
    for field in _OF_MODELS:
        if body.get(field) is not None:
            raise BadOption(
                f"function {name}: {field!r} is said of models that are named, and 'wants' names none; leave "
                "one of the two out"
            )
    if wants.slo_ms is not None and body.get("slo_ms") not in (None, wants.slo_ms):
        raise BadOption(f"function {name}: 'slo_ms' is said twice, and 'wants' says {wants.slo_ms:g}")
    told = {field: value for field, value in body.items() if value is not None and field in _FIELDS}
    slo = {} if wants.slo_ms is None else {"slo_ms": wants.slo_ms}
    return {
        **told,
        **slo,
        "wants": wants.to_json(),
        "candidates": [model.key for model in candidates],
    }


def function_of(
    name: str,
    version: int,
    spec: Mapping[str, Any],
    catalog: Models,
    defaults: Mapping[str, Any],
    fit: Fit | None = None,
    *,
    is_draft: bool = False,
) -> Function:
    """The function that a specification describes. fit: what was fitted of its members.

    is_draft: what was fitted is not known yet, and whether the function can do without is not asked.
    Raises `BadOption`, `UnknownFunction`.
    """
    given = {**defaults, **spec}
    wants = wants_from(name, given.get("wants"))
    if wants is not None:
        return _by_wish(name, version, given, defaults, catalog, wants)
    models = [_model_named(key, catalog) for key in given["models"]]
    _check_alike(name, models)
    try:
        names = select_members(given.get("select") or "all", _strengths(models))
    except ValueError as exc:
        raise BadOption(f"function {name}: {exc}") from exc
    members = tuple(model for model in models if model.name in names)
    _check_fit(name, members, fit)
    select, members = _select(name, members, given, fit, is_draft=is_draft)
    task = _task(given.get("task"), name, members)
    proxy, cascade = _cascade(name, given, members, task, catalog)
    late_rows = late_rows_from(name, given.get("late_rows"))
    function = Function(
        name=name,
        version=version,
        members=members,
        form=members[0].input.form,
        asked_task="" if task.name == members[0].task else task.name,
        features=int(given.get("features", 0)),
        combine=_combine(given.get("combine"), name, task),
        actor=_actor(name, given, len(members)),
        fit=fit,
        select=select if proxy is None else "cascade",
        thresholds=_thresholds(given.get("thresholds"), name, task, members[0].classes),
        late_members=_late_members(given.get("late_members", "wait"), name),
        late_rows=late_rows,
        parity=None if late_rows is None else _parity(name, late_rows, members, proxy, catalog),
        named=tuple(model.key for model in models),
        proxy=proxy,
        cascade=cascade,
    )
    return _with_options(function, given, defaults)


def _by_wish(
    name: str,
    version: int,
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    catalog: Models,
    wants: Wants,
) -> Function:
    """The function that a wish describes, as its first candidate answers it."""
    candidates = tuple(_those_left(given["candidates"], catalog))
    if not candidates:
        raise BadOption(f"function {name}: none of {', '.join(given['candidates'])} is here any more")
    first = candidates[0]
    _check_alike(name, candidates)
    task = _task(given.get("task"), name, candidates)
    function = Function(
        name=name,
        version=version,
        members=(first,),
        form=first.input.form,
        asked_task="" if task.name == first.task else task.name,
        combine=_combine(None, name, task),
        named=tuple(model.key for model in candidates),
        wants=wants,
        candidates=candidates,
    )
    return _with_options(function, given, defaults)


def _those_left(keys: Sequence[str], catalog: Models) -> Iterator[ModelVersion]:
    """A variant may have been removed since: the others can do without it."""
    for key in keys:
        with contextlib.suppress(UnknownFunction):
            yield _model_named(key, catalog)


def _with_options(function: Function, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Function:
    """The function, with what is said of it whichever models it has. Raises `BadOption`."""
    name, task = function.name, function.task
    max_batch = _whole(given, name, "max_batch", 1, _MAX_BATCH)
    function = replace(
        function,
        min_confidence=_number(given, name, "min_confidence", 0.0, 1.0),
        default=_default(given.get("default"), name),
        slo_ms=_number(given, name, "slo_ms", 0.001, 86_400_000.0),
        max_batch=max_batch,
        batch_sizes=_batch_sizes(given.get("batch_sizes"), max_batch, name),
        policy=str(given["policy"]),
        policy_options=_options(given.get("policy_options", {}), name),
        media_roots=_media_roots(given.get("media_roots", _roots_by_default(defaults)), name),
        answer_cache=_answer_cache(given.get("answer_cache"), name),
    )
    if task.confidence is None and (function.min_confidence or function.default is not None):
        raise BadOption(
            f"function {name}: {task.name} is answered without a confidence; leave 'min_confidence' and "
            "'default' out"
        )
    return _with_form(function, given.get("input"))


def single_model_function(model: ModelVersion, defaults: Mapping[str, Any]) -> Function:
    """The function as which a model answers under its own name."""
    max_batch = int(defaults["max_batch"])
    return Function(
        name=model.name,
        version=model.version,
        members=(model,),
        form=model.input.form,
        combine=_combine(None, model.name, task_named(model.task)),
        slo_ms=float(defaults["slo_ms"]),
        max_batch=max_batch,
        batch_sizes=_batch_sizes(None, max_batch, model.name),
        policy=str(defaults["policy"]),
        bare=True,
        media_roots=_media_roots(_roots_by_default(defaults), model.name),
    )


def deployed_form(function: Function) -> dict[str, Any]:
    """What is said of a function to who asks."""
    return {
        "format": 1,
        "name": function.name,
        "version": function.version,
        "task": function.task.name,
        "features": function.sizes["features"],
        "outputs": outputs_of(function),
        "input": {"name": function.input_name, "form": function.form},
        "combine": function.combine,
        "fitted": None if function.fit is None else _fitted(function, function.fit),
        "cascade": function.cascade,
        "wants": None if function.wants is None else function.wants.to_json(),
        "members": [
            {"model": model.name, "version": model.version, "accuracy": model.accuracy}
            for model in function.members
        ],
        "slo_ms": function.slo_ms,
        "min_confidence": function.min_confidence,
        "default": function.default,
        "thresholds": dict(function.thresholds),
        "media_roots": None if function.media_roots is None else list(function.media_roots),
        "answer_cache": function.answer_cache,
        "late_members": function.late_members,
        "late_rows": None if function.late_rows is None else function.late_rows.to_json(),
        "pipeline": None if function.pipeline is None else function.pipeline.told(),
        "goal_split": None if function.pipeline is None else function.pipeline.split,
    }


def file_form(function: Function) -> dict[str, Any]:
    """functions/NAME.json of docs/architecture.md: all that `local:` needs to answer alike."""
    told = deployed_form(function)
    # Nobody else asks there, all members answer, and of a wish the candidate that does at rest.
    del told["answer_cache"], told["cascade"], told["wants"], told["late_rows"], told["late_members"]
    del told["pipeline"], told["goal_split"]
    if function.pipeline is not None:  # with its stages in the versions that it has
        crop = function.pipeline.crop
        stages = [file_form(stage) for stage in function.pipeline.stages]
        return {**told, "fit": None, "stages": stages, "crop": None if crop is None else crop.to_json()}
    fit, evidence = function.fit, None if function.fit is None else function.fit.evidence
    if fit is None or evidence is None or not function.follows_plans or function.proxy is not None:
        # Nobody reads it where all answer.
        return {**told, "fit": None if fit is None else replace(fit, evidence=None).to_json()}
    plan = richest_plan(evidence)
    decodes = function.form in ("path", "image")
    if not is_worth_it_alone(members_asked(evidence, plan), len(function.members), decodes=decodes):
        plan = []
    # How states follow one another is needed no longer, and is most of it.
    fit = replace(fit, evidence=replace(evidence, following={}))
    return {**told, "fit": fit.to_json(), "plan": plan}


def outputs_of(function: Function) -> list[dict[str, Any]]:
    """The columns of its answers, as the protocol's metadata has outputs."""
    return [spec.described(function.sizes) for spec in function.outputs]


def members_named(members: Sequence[ModelVersion]) -> str:
    """The members' keys, for a message."""
    return ", ".join(model.key for model in members)


def _model_named(entry: object, catalog: Models) -> ModelVersion:
    """A model by "name", "name/version" or {"model": name, "version": n}."""
    if isinstance(entry, dict):
        entry = (
            entry.get("model") if entry.get("version") is None else f"{entry.get('model')}/{entry['version']}"
        )
    if not isinstance(entry, str):
        raise BadOption(f'{entry!r} does not name a model: say "name" or "name/version"')
    name, slash, version = entry.rpartition("/")
    if not slash:
        return catalog.model(entry)
    if not version.isascii() or not version.isdigit():
        raise BadOption(f"{entry!r} does not name a model: its version must be a number")
    return catalog.model(name, int(version))


def _proxy_named(function: str, entry: str, catalog: Models) -> ModelVersion:
    """A model by its name, or by that of a function which it answers alone."""
    try:
        return _model_named(entry, catalog)
    except UnknownFunction:
        if "/" in entry or not catalog.is_function(entry):
            raise
    members = catalog.versions(entry)[-1].members
    if len(members) > 1:
        raise BadOption(
            f"function {function}: its proxy {entry} is a function of {len(members)} models, and one "
            "model is asked before the others; name one of them"
        )
    return _model_named(members[0].key, catalog)


def _check_alike(name: str, models: Sequence[ModelVersion]) -> None:
    first = models[0]
    for model in models:
        if model.parity is not None:
            raise BadOption(
                f"function {name}: {model.name} answers groups of rows, and none alone; name "
                f"{base_of(model.name)}, and say late_rows: "
                f'{{"by": "parity", "k": {model.parity.k}}}'
            )
    for model in models[1:]:
        if model.task != first.task:
            raise BadOption(
                f"function {name}: {first.name} does {first.task} and {model.name} does {model.task}; "
                "members must share their task"
            )
        if model.classes != first.classes:
            raise BadOption(
                f"function {name}: {first.name} and {model.name} name different classes, or order them "
                "differently; members must share them"
            )
        if model.input.columns != first.input.columns:
            raise BadOption(
                f"function {name}: {first.name} and {model.name} take different columns; "
                "members must share them"
            )


def _strengths(models: Sequence[ModelVersion]) -> list[tuple[str, float]]:
    """By name, by what models are the better ones: accuracy, or their scores, if all have one of a kind."""
    scores = [model.score or {} for model in models]
    metric = METRICS.get(str(scores[0].get("metric")))
    alike = metric is not None and all(score.get("metric") == metric.name for score in scores)
    values = [score.get("value") for score in scores]
    if any(model.accuracy for model in models) or metric is None or not alike or None in values:
        return [(model.name, model.accuracy) for model in models]
    return [
        (model.name, metric.merit(float(str(value)))) for model, value in zip(models, values, strict=True)
    ]


def _check_fit(name: str, members: Sequence[ModelVersion], fit: Fit | None) -> None:
    for model in members if fit is not None else ():
        if fit is not None and model.name not in fit.members:
            raise BadOption(
                f"function {name}: what was fitted is of {', '.join(fit.members)}, and {model.name} is none "
                "of them; deploy the function anew"
            )


def _select(
    name: str,
    members: tuple[ModelVersion, ...],
    given: Mapping[str, Any],
    fit: Fit | None,
    *,
    is_draft: bool,
) -> tuple[Any, tuple[ModelVersion, ...]]:
    """What selects the members, and these, in the order that it needs. Raises `BadOption`.

    Where nothing is said, `value`, if it has something to go by; else all answer.
    """
    asked = given.get("select")
    if is_draft or not (asked is None or is_policy(asked)):
        return asked or "all", members
    if asked is not None:
        return asked, _selectable(name, members, given, fit)
    try:
        return _BY_DEFAULT, _selectable(name, members, {**given, "select": _BY_DEFAULT}, fit)
    except BadOption:
        return "all", members


def _selectable(
    name: str, members: tuple[ModelVersion, ...], given: Mapping[str, Any], fit: Fit | None
) -> tuple[ModelVersion, ...]:
    """The members in the order of the fit. Raises `BadOption` where no policy can select among them."""
    policy, hint = given["select"], "say select: 'all', or deploy it from a training job anew"
    task = task_named(given.get("task") or members[0].task)
    if not task.picks_one and policy not in _BY_SUBSET:
        raise BadOption(
            f"function {name}: {policy!r} selects by how sure members are of one class, and the answers to "
            f"{task.name} are none; say select: 'all', or one of {', '.join(_BY_SUBSET)}"
        )
    if len(members) < 2:
        raise BadOption(f"function {name}: {policy!r} selects among several members, and there is one")
    if fit is None or fit.evidence is None:
        raise BadOption(
            f"function {name}: {policy!r} selects by how its members did on held-out rows, and that was not "
            f"counted (it is when up to six members are deployed from a training job); {hint}"
        )
    if {model.name for model in members} != set(fit.members):
        raise BadOption(
            f"function {name}: {policy!r} selects among the members that were fitted, "
            f"{', '.join(fit.members)}; name all of them and no other"
        )
    if (rule := given.get("combine") or next(iter(task.rules), "")) != fit.rule:
        raise BadOption(
            f"function {name}: {policy!r} reads the confidence of combine: 'log_pool', not of {rule!r}"
            if task.picks_one
            else f"function {name}: {policy!r} goes by what the members' answers are worth together by "
            f"combine: {fit.rule!r}, not by {rule!r}"
        )
    return tuple(sorted(members, key=lambda model: fit.members.index(model.name)))


def _cascade(
    name: str,
    given: Mapping[str, Any],
    members: Sequence[ModelVersion],
    task: Task,
    catalog: Models,
) -> tuple[Proxy | None, dict[str, Any] | None]:
    """The proxy that answers, if one does; and what is said of what was asked. Raises `BadOption`."""
    asked = cascade_asked(name, given.get("cascade"))
    if asked is None:
        return None, None
    check_cascade(
        name, given, members, task, None if asked.proxy is None else _model_named(asked.proxy, catalog)
    )
    found = given.get("cascade_found")
    proxy = proxy_of(name, found, members, lambda key: _model_named(key, catalog))
    told: dict[str, Any] = {
        "asked": asked.to_json(),
        "is_used": proxy is not None,
        "agreement": asked.agreement,
    }
    if proxy is not None:
        told |= {"proxy": proxy.model.key, **shown(proxy.fit)}
    elif isinstance(found, Mapping):
        told |= {"proxy": found.get("proxy"), "reason": found.get("reason"), **refused(found.get("refused"))}
    return proxy, told


def _actor(name: str, given: Mapping[str, Any], members: int) -> ActorNetwork | None:
    """The trained network of `actor_critic`. Raises `BadOption` for a bad one, or none where it is needed."""
    told, is_needed = given.get("actor"), given.get("select") == "actor_critic"
    if told is None and is_needed:
        raise BadOption(
            f"function {name}: 'actor_critic' follows a network that was trained for its members; train one "
            "with ml-udf train-actor, and say it as 'actor'"
        )
    if told is None:
        return None
    try:
        actor = ActorNetwork.from_json(told)
    except ValueError as exc:
        raise BadOption(f"function {name}: 'actor' cannot be read: {exc}") from exc
    if is_needed and actor.members != members:
        raise BadOption(
            f"function {name}: 'actor' was trained for {actor.members} members, and there are {members}"
        )
    return actor


def _fitted(function: Function, fit: Fit) -> dict[str, Any]:
    """What a fit says of a function's members together: on rows that it was not fitted on."""
    together = fit.of(fit.subset(model.name for model in function.members))
    if fit.measure != ACCURACY:
        worth = None if together is None else together.accuracy
        return {"rows": fit.rows, "subsets": len(fit.subsets), "measure": fit.measure, "value": worth}
    return {
        "rows": fit.rows,
        "subsets": len(fit.subsets),
        "accuracy": None if together is None else together.accuracy,
        "nll": None if together is None else together.nll,
    }


def feedback_form(function: Function) -> dict[str, Any] | None:
    """What labelled rows say of a function: of the last of them, who was right; None where there are none.

    weights: of all its members together, by which it answers now; None where nothing is learned. refit: when
    the fit was last made anew, and why; None for never. Of numbers there is no accuracy, but the RMSE.
    """
    known, fit = function.feedback, function.rule.fit
    if known is None:
        return None
    weights = None
    if function.learns and fit is not None:
        together = fit.subset(known.members)
        weights = dict(zip([fit.members[place] for place in together], fit.weights(together), strict=True))
    numbers: dict[str, Any] = {}
    if function.answers_numbers:
        own, *each = known.errors or (None,) * (1 + len(known.members))
        numbers = {"rmse": own, "rmse_by_member": dict(zip(known.members, each, strict=True))}
        if function.is_taught:
            weights = {name: function.rule.weights.get(name, 1.0) for name in known.members}
    return {
        **numbers,
        "rows": known.rows,
        "learns": function.is_taught,
        "recent_rows": len(known.squares) if function.answers_numbers else len(known.recent),
        "accuracy": known.accuracy,
        # What is right of a function by wish is said of it, whichever candidate answered.
        "by_member": None if function.wants is not None else known.by_member,
        "weights": weights,
        "refit": None if known.refit is None else _refit_form(known.refit),
    }


def _refit_form(note: RefitNote) -> dict[str, Any]:
    """When a member was last found to be other than expected, and what was done about it."""
    return {
        "refitted_at": note.at,
        "reason": str(note),
        "members": list(note.off),
        "rows": note.rows,
        "number": note.number,
    }


def _task(raw: object, name: str, members: Sequence[ModelVersion]) -> Task:
    """What is asked of the members. Raises `BadOption` where they do not do it, or not together."""
    own = members[0].task
    if raw is None:
        task = task_named(own)
    elif not isinstance(raw, str) or (raw != own and raw not in TASKS):
        raise BadOption(f"function {name}: 'task' must be one of {', '.join(TASKS)}, not {raw!r}")
    else:
        task = task_named(raw)
    if not task.is_done_by(own):
        does = ", ".join((task.name, *task.models_of))
        raise BadOption(
            f"function {name}: {members[0].name} does {own}, and {task.name} takes a model of {does}"
        )
    if len(members) > 1 and not task.rules:
        raise BadOption(
            f"function {name}: one model answers {task.name} alone, and {len(members)} are named: the "
            "numbers of different models do not mean the same; name one, or say select: 'best'"
        )
    return task


def _with_form(function: Function, raw: object) -> Function:
    if raw is None:
        return function
    if isinstance(raw, str):
        raw = {"form": raw}
    if not isinstance(raw, dict):
        raise BadOption(f"function {function.name}: 'input' must be a form, or an object with one")
    form = raw.get("form") or next((f for f, name in INPUT_NAMES.items() if name == raw.get("name")), None)
    if form not in function.forms:
        raise BadOption(
            f"function {function.name}: 'input.form' must be one of {', '.join(function.forms)}, not {form!r}"
        )
    return replace(function, form=form)


def _number(given: Mapping[str, Any], name: str, field: str, low: float, high: float) -> float:
    value = given.get(field, low)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise BadOption(
            f"function {name}: {field!r} must be a number from {low:g} to {high:g}, not {value!r}"
        )
    return float(value)


def _whole(given: Mapping[str, Any], name: str, field: str, low: int, high: int) -> int:
    value = given.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadOption(
            f"function {name}: {field!r} must be a whole number from {low} to {high}, not {value!r}"
        )
    return value


def _batch_sizes(raw: object, max_batch: int, name: str) -> tuple[int, ...]:
    """B of Rafiki §5.1: as given, else the powers of two up to the largest batch, and that."""
    if raw is None:
        powers = [1 << i for i in range(max_batch.bit_length()) if 1 << i < max_batch]
        return (*powers, max_batch)
    if not isinstance(raw, list) or not raw or not all(type(size) is int and size >= 1 for size in raw):
        raise BadOption(f"function {name}: 'batch_sizes' must be a list of whole numbers from 1")
    if max(raw) != max_batch:
        raise BadOption(f"function {name}: the largest of 'batch_sizes' must be 'max_batch', {max_batch}")
    return tuple(sorted(set(raw)))


def _combine(raw: object, name: str, task: Task) -> str:
    """The rule of several members, the task's first where none is named; "" where it has none."""
    if raw is None:
        return task.rules[0] if task.rules else ""
    if not task.rules:
        raise BadOption(f"function {name}: one member answers {task.name} alone; leave 'combine' out")
    if isinstance(raw, str) and raw in task.rules:
        return raw
    raise BadOption(f"function {name}: 'combine' must be one of {', '.join(task.rules)}, not {raw!r}")


def _late_members(raw: object, name: str) -> LateMembers:
    if raw == "wait" or raw == "leave_out":
        return raw
    raise BadOption(f"function {name}: 'late_members' must be 'wait' or 'leave_out', not {raw!r}")


def _parity(
    name: str, asked: LateRows, members: Sequence[ModelVersion], proxy: Proxy | None, catalog: Models
) -> ModelVersion | None:
    """The parity model of its one member; None where late rows are sent anew. Raises `BadOption`."""
    if len(members) > 1 or proxy is not None:
        raise BadOption(
            f"function {name}: 'late_rows' is for functions of one model, and this one asks several; say "
            "late_members: 'leave_out'"
        )
    if asked.by != PARITY:
        return None
    (model,) = members
    made = variant_of(model.name)
    variant = parity_variant(asked.k)
    try:
        return catalog.model(variant_model(model.name, variant), model.version)
    except (UnknownFunction, ValueError) as exc:
        what = model.name if made == "original" else f"{base_of(model.name)}, not of its variant {made}"
        raise BadOption(
            f"function {name}: there is no parity model of {model.key} for groups of {asked.k}; one is made "
            f"of {what}: ml-udf variants {base_of(model.name)} --only {variant}"
        ) from exc


def _answer_cache(raw: object, name: str) -> bool | None:
    if raw is None or isinstance(raw, bool):
        return raw
    raise BadOption(f"function {name}: 'answer_cache' must be true or false, not {raw!r}")


def _thresholds(raw: object, name: str, task: Task, classes: Sequence[str]) -> dict[str, float]:
    """By class, where they are not the models' own. Raises `BadOption`."""
    if raw is not None and task.threshold is None and not task.picks_one:
        raise BadOption(f"function {name}: {task.name} has no thresholds; leave 'thresholds' out")
    try:
        own = thresholds_from(raw, classes)
        thresholds_of(task, classes, [{}], own)
    except ValueError as exc:
        raise BadOption(f"function {name}: {exc}") from exc
    return own


def _default(raw: object, name: str) -> str | None:
    if raw is not None and not isinstance(raw, str):
        raise BadOption(f"function {name}: 'default' must be a text, not {raw!r}")
    return raw


def _roots_by_default(defaults: Mapping[str, Any]) -> list[str] | None:
    """Of functions and models that name none: all that are read, or nothing."""
    return [] if defaults.get("name_media_roots") else None


def _media_roots(raw: object, name: str) -> tuple[str, ...] | None:
    if raw is None:
        return None
    if not isinstance(raw, list) or not all(isinstance(r, str) and r.startswith("/") for r in raw):
        raise BadOption(f"function {name}: 'media_roots' must be a list of absolute paths of folders")
    if any("\0" in root for root in raw):
        raise BadOption(f"function {name}: 'media_roots' holds a NUL character")
    return tuple(raw)


def _options(raw: object, name: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise BadOption(f"function {name}: 'policy_options' must be an object")
    return dict(raw)
