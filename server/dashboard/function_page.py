"""`/functions` and `/functions/F`: what a function is made of, how it does, and a try of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from server.access.masking import masked, masked_fault, masked_text
from server.catalog.functions import Function
from server.catalog.pipeline import Pipeline
from server.dashboard.function_view import (
    DecisionLine,
    FunctionView,
    callers_of,
    kept_of,
    latency_chart,
    members_of,
    sizes_of,
    subsets_of,
    versions_of,
    why_of,
)
from server.dashboard.image_size import image_size
from server.dashboard.page_context import Page, PageOf
from server.dashboard.page_route import PageRoute
from server.dashboard.security import PAGE_HEADERS
from server.dashboard.sharing import sharing_of
from server.dashboard.sql_view import of_function
from server.dashboard.thumbnails import file_below
from server.dashboard.try_inputs import Asked, Takes, fields_of, from_form, from_row, takes
from server.dashboard.try_view import TriedView, refused_view, tried_view
from server.errors import BadOption, Forbidden, ServiceError
from server.http.body import ClientGone
from server.serving.calls import Call, Reply
from server.serving.wishes import Decided
from server.training.drift import DriftOf, seen_drift
from server.training.recipes import recipe_for

__all__ = ["router"]

router = APIRouter(prefix="/functions", route_class=PageRoute, include_in_schema=False)

_VERSIONS = 20
_DECISIONS = 20  # by goals, those asked last
_PATIENCE_S = 30.0
_FIELDS = 400
_HEAD_BYTES = 1 << 18  # of a photo, before which its size stands


@dataclass(frozen=True, slots=True)
class TryForm:
    """What can be tried. datasets: names, with how many test rows each has"""

    takes: Takes
    fields: tuple[Any, ...]
    text: str = ""
    datasets: tuple[tuple[str, int], ...] = ()
    dataset: str = ""
    row: int = 0


@router.get("")
async def list_functions(page: PageOf) -> Response:
    """Functions, and models that answer by themselves."""
    functions, models = page.functions(), page.bare_models()
    names = {each.name: _members_of(page, each) for each in (*functions, *models)}
    return await page.reply(
        "functions.html", functions=functions, models=models, names=names, ready=_ready(page)
    )


@router.get("/{name}")
async def show_function(page: PageOf, name: str) -> Response:
    """The page."""
    function = page.function(name)
    return await _reply(page, function, None)


@router.post("/{name}/try")
async def try_function(page: PageOf, name: str, request: Request) -> Response:
    """Ask it for one row. A script gets the answer alone, everybody else the page with it."""
    function = page.function(name)
    async with request.form(max_files=2, max_fields=_FIELDS) as form:
        dataset = str(form.get("dataset", ""))
        if form.get("pick") is not None and dataset:
            asked = await _row_of(page, function, dataset, str(form.get("row", "")))
        else:
            asked = await from_form(function, form, page.services.settings.max_input_bytes)
    try:
        tried = _masked(page, function, await _tried(page, function, asked, request))
    except ClientGone:
        return Response(status_code=499)  # nobody reads it
    if page.is_part:
        # The script shows the photo from where it is.
        shown = "" if asked.form == "image" else asked.shown
        bare = replace(tried, asked=replace(asked, row=b"", shown=shown))
        return await page.reply("try/answer.html", tried=bare, function=function)
    return await _reply(page, function, tried, dataset=dataset)


@router.post("/{name}/rollback")
async def roll_back(page: PageOf, name: str) -> Response:
    """Deploy what it was before. Raises `Forbidden` where it is another's."""
    page.seen.check_function(name)
    page.view.check_changes("function", name)
    await page.services.deployer.roll_back(name)
    # Relative, for whatever prefix: the page of the function is beside this route's own path.
    return RedirectResponse(f"../{name}#versions", 303, headers=dict(PAGE_HEADERS))


def _members_of(page: Page, function: Function) -> list[str]:
    """Their names, as far as the caller sees them."""
    hidden = page.seen.hidden_members(function)
    return [masked_text(member.name, hidden) for member in function.members]


def _drift_of(page: Page, function: Function) -> tuple[DriftOf, ...]:
    found = [each for each in page.services.drift.latest if each.function == function.name]
    return tuple(seen_drift(found, page.seen, page.view))


async def _reply(page: Page, function: Function, tried: TriedView | None, dataset: str = "") -> Response:
    view = await _view(page, function)
    return await page.reply(
        "function.html",
        view=view,
        latency=await asyncio.to_thread(latency_chart, view.sizes),
        form=await _form(page, function, tried, dataset),
        tried=tried,
        function=function,
        snippets=of_function(function),
        sharing=sharing_of(page, "model" if function.bare else "function", function.name),
        may_roll_back=page.may_deploy and page.view.changes("function", function.name),
    )


async def _view(page: Page, function: Function) -> FunctionView:
    services = page.services

    def latency_of(model: Any) -> Any:  # noqa: ANN401  # as `Latencies.of_rows` has it
        return services.latencies.of_rows(model, function.form)

    selection = services.selections.of(function)
    plans = services.dispatcher.followed(function, function.form)
    stats = services.metrics.of(function)
    served = [each for each in services.catalog.versions(function.name) if each.bare == function.bare]
    deployed = [] if function.bare else await services.publisher.deployments(function.name, _VERSIONS)
    only = None if page.caller.is_admin else page.caller.key
    hidden = page.seen.hidden_members(
        function, (key for each in deployed for key in each.spec.get("models", ()))
    )
    return FunctionView(
        function.name,
        function.version,
        function.task.name,
        function.bare,
        function.name in _ready(page, [function]),
        masked(_facts(function, selection.expected_accuracy), hidden),
        function.classes,
        masked_text(why_of(function, selection, services.dispatcher.select_fault(function)), hidden),
        "accuracy" if function.task.picks_one else function.task.worth,
        masked(members_of(function, plans, services.resident(), latency_of), hidden),
        masked(subsets_of(function), hidden),
        masked(versions_of(_told(deployed), served), hidden),
        sizes_of(
            function,
            stats,
            latency_of,
            lambda rows: services.dispatcher.saved_s(function, function.form, rows),
        ),
        callers_of(stats, only=only),
        _drift_of(page, function),
        masked(_decisions(services.wishes.decided(function)), hidden),
        kept_of(stats.cache),
    )


def _decisions(decided: Sequence[Decided]) -> tuple[DecisionLine, ...]:
    return tuple(
        DecisionLine(
            str(each.decision.goals) or "none",
            each.decision.chosen,
            each.decision.is_met,
            each.decision.reason,
            each.rows,
            each.since,
        )
        for each in decided[:_DECISIONS]
    )


def _told(deployed: Sequence[Any]) -> list[tuple[int, Sequence[str], float]]:
    return [(each.version, each.spec.get("models", ()), each.deployed_at.timestamp()) for each in deployed]


def _facts(function: Function, expected: float | None) -> tuple[tuple[str, str], ...]:
    if function.pipeline is not None:
        return _pipeline_facts(function, function.pipeline)
    facts = [
        ("answers", function.task.name),
        ("takes", ", ".join(function.forms)),
        ("goal", f"{function.slo_ms:g} ms"),
        ("largest batch", f"{function.max_batch} rows"),
        ("batching", function.policy),
    ]
    if function.wants is not None:
        wished = function.wants.to_json()
        facts.append(("wished", ", ".join(f"{name} {value}" for name, value in wished.items())))
        facts.append(("candidates", str(len(function.candidates))))
    if len(function.members) > 1:
        facts.append(("combined by", function.combine))
        select = function.select if isinstance(function.select, str) else ", ".join(function.select)
        facts.append(("members chosen by", select))
    if expected is not None:
        facts.append(("expected to be right" if function.task.picks_one else "worth", f"{expected:.1%}"))
    if function.min_confidence:
        facts.append(("least confidence", f"{function.min_confidence:g}"))
    if function.default is not None:
        facts.append(("default", function.default))
    if function.media_roots is not None:
        facts.append(("media roots", ", ".join(function.media_roots)))
    return tuple(facts)


def _pipeline_facts(function: Function, pipeline: Pipeline) -> tuple[tuple[str, str], ...]:
    stages = [f"{stage.name} {stage.version}" for stage in pipeline.stages]
    if pipeline.crop is not None:
        stages.insert(1, "crop")
    return (
        ("answers", function.task.name),
        ("made of", " → ".join(stages)),
        ("takes", ", ".join(function.forms)),
        ("goal", f"{function.slo_ms:g} ms"),
        ("goal split", pipeline.split),
    )


def _ready(page: Page, functions: list[Function] | None = None) -> set[str]:
    services = page.services
    asked = [*page.functions(), *page.bare_models()] if functions is None else functions
    return {
        each.name for each in asked if services.catalog.is_loaded(each.name) and services.is_resident(each)
    }


async def _form(page: Page, function: Function, tried: TriedView | None, dataset: str) -> TryForm:
    asked = None if tried is None else tried.asked
    fitting: list[tuple[str, int]] = []
    if page.may_train:
        for snapshot in await page.datasets():
            rows = int(snapshot.facts["splits"].get("test", 0))
            if rows and _fits(function, snapshot.spec["task"], snapshot.facts.get("columns", ())):
                fitting.append((snapshot.dataset, rows))
    return TryForm(
        takes(function),
        fields_of(function, () if asked is None else asked.values),
        "" if asked is None else asked.text,
        tuple(fitting),
        dataset,
    )


def _fits(function: Function, task: str, columns: Any) -> bool:  # noqa: ANN401  # of a snapshot's facts
    own = [name for name, _ in function.columns]
    return recipe_for(task).form in function.forms and own == [column["name"] for column in columns]


async def _row_of(page: Page, function: Function, dataset: str, number: str) -> Asked:
    """A test row of a dataset, counted from 1. Raises `Forbidden`, `BadOption`."""
    if not page.may_train:
        raise Forbidden("the rows of datasets are for who may train")
    snapshot = await page.dataset(dataset)
    if not _fits(function, snapshot.spec["task"], snapshot.facts.get("columns", ())):
        raise BadOption(f"the rows of dataset {dataset} are not what {function.name} takes")
    most = int(snapshot.facts["splits"].get("test", 0))
    place = int(number) if number.isdecimal() else 0
    found = await page.services.datasets.test_row(snapshot, place - 1) if 1 <= place <= most else None
    if found is None:
        raise BadOption(f"dataset {dataset} has the test rows 1 to {most}, and no row {number[:20]!r}")
    at, text, target = found
    recipe = recipe_for(snapshot.spec["task"])
    form: Any = recipe.form
    asked = from_row(function, form, text, str(target), f"row {place} of {dataset}")
    if not recipe.pictures:
        return asked
    width, height = await asyncio.to_thread(_size_of, text, page.media_folders())
    path = f"datasets/{quote(dataset, safe='')}/pictures/{quote(snapshot.id, safe='')}/{at}?size=large"
    base = "../" if page.is_part else page.base  # a part stands in the function's page
    return replace(asked, shown=base + path, width=width, height=height)


def _size_of(path: str, roots: Sequence[str]) -> tuple[int, int]:
    """Of a photo below the roots, by its first bytes; (0, 0) where that is not known."""
    file = file_below(path, roots)
    if file is None:
        return 0, 0
    try:
        with open(file, "rb") as opened:
            return image_size(opened.read(_HEAD_BYTES)) or (0, 0)
    except OSError:
        return 0, 0


async def _tried(page: Page, function: Function, asked: Asked, request: Request) -> TriedView:
    """Two calls: as everybody asks, and what each member says by itself. Raises `ClientGone`."""
    began_s = time.monotonic()
    call = Call(
        function,
        asked.form,
        [asked.row],
        len(asked.row),
        outputs=tuple(spec.name for spec in function.task.columns),
        deadline_s=began_s + _PATIENCE_S,
        row_class="bulk" if page.caller.bulk_only else "interactive",
        caller=page.caller.key,
        media_roots=page.view.media_roots,
        is_traffic=False,
    )
    try:
        reply = await page.services.calls.ask(call, request.receive, began_s)
    except ClientGone:
        raise
    except ServiceError as error:
        return refused_view(asked, error.code, error.message, time.monotonic() - began_s)
    took_s = time.monotonic() - began_s
    return tried_view(function, asked, reply, await _members_say(page, call, reply, request), took_s)


def _masked(page: Page, function: Function, tried: TriedView) -> TriedView:
    """The same without the names of members that the caller does not see."""
    hidden = page.seen.hidden_members(function)
    if not hidden:
        return tried
    return replace(
        tried,
        answered_by=masked(tried.answered_by, hidden),
        members=tuple(replace(each, name=masked_text(each.name, hidden)) for each in tried.members),
        error=masked_fault(tried.error_code, tried.error, hidden, of_stage=function.pipeline is not None),
    )


async def _members_say(page: Page, call: Call, reply: Reply, request: Request) -> Any:  # noqa: ANN401  # `Reply.told`
    """Nothing where one member answers alone, or one cannot be asked, or where they do different things."""
    function = call.function
    if len(function.members) == 1 or reply.errors or function.pipeline is not None:
        return ()
    asked = Call.of_all_members(
        function, call.form, call.rows, caller=call.caller, media_roots=call.media_roots
    )
    asked = replace(asked, row_class=call.row_class, deadline_s=call.deadline_s, is_traffic=False)
    try:
        return (await page.services.calls.ask(asked, request.receive, time.monotonic())).told
    except ClientGone:
        raise
    except ServiceError:
        return ()
