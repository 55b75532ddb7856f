"""What changes what is served: registering a model, deploying a function, deleting one, loading, unloading.

Each verb keeps four things in step: the files of the home folder, the registry, the catalog, the
dispatcher. In this order, so that a crash in between leaves something that the next start completes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from sqlalchemy.exc import SQLAlchemyError

from server.access.caller import Kind
from server.access.ownership import Ownership
from server.access.seen_catalog import SeenCatalog
from server.access.view import WHOLE, View
from server.catalog.cascade_spec import cascade_asked, found_form
from server.catalog.catalog import Catalog, Models
from server.catalog.function_spec import file_form, function_of, members_named, spec_from
from server.catalog.functions import Function, ModelVersion
from server.catalog.jobs import unknown_dataset
from server.catalog.pipeline_spec import is_pipeline, pipeline_function, pipeline_spec
from server.catalog.stages import Stages
from server.catalog.variant_choice import among_variants
from server.catalog.variants import Variants, base_of, is_variant
from server.catalog.wants import Wants, wants_from
from server.catalog.wishes import candidates_for
from server.ensemble.fit import Fit
from server.errors import BadOption, NoSpace, Overloaded, ServiceError, UnknownFunction, VersionGone
from server.lease import ALONE, Leading
from server.placement.remote_models import RemoteModels
from server.placement.residency import Residency
from server.serving.dispatcher import Dispatcher
from server.serving.learned_state import with_feedback
from server.serving.proxies import Proxies, RowsFor
from server.serving.wishes import Wishes
from server.store.artifacts import Artifacts
from server.store.backbones import check_backbone
from server.store.damaged import DamagedRecord
from server.store.manifest import check_name, model_from_manifest
from server.store.repository import SERVED_DEPLOYMENTS, Deployment, Repository
from server.supervision import Tasks

__all__ = ["Publisher", "fit_from"]

log = logging.getLogger("ml_udf.server.publishing")

_LEASE_LOOK_S = 1.0
_FILES_LOOK_S = 1.0
_FOLLOW_S = 1.0
_RENEW_AGAIN_S = 10.0  # a wish for which nothing could be deployed just now


class Publisher:
    """One change at a time. `defaults` are the fields of a function's specification that it may leave out."""

    def __init__(
        self,
        repository: Repository,
        artifacts: Artifacts,
        catalog: Catalog,
        dispatcher: Dispatcher,
        residency: Residency,
        defaults: Mapping[str, Any],
        load_patience_s: float,
        allow_import: bool = False,
        tasks: Tasks | None = None,
        remote: RemoteModels | None = None,
        ownership: Ownership | None = None,
        proxies: Proxies | None = None,
        wishes: Wishes | None = None,
        dataset_of: Callable[[ModelVersion], str | None] = lambda model: None,
        view_of_owner: Callable[[Kind, str], View] = lambda kind, name: WHOLE,
        variants: Variants | None = None,
        lease: Leading = ALONE,
    ) -> None:
        """wishes: decides who answers functions by wish. dataset_of: on which a model was trained, if that is
        known; blocking. view_of_owner: of whose a thing is; raises `Forbidden` where their token counts no
        more. lease: whether this server is the one that deploys by itself.
        """
        self._lease = lease
        self._variants = variants or Variants()
        self._proxies = proxies
        self._wishes = wishes
        self._dataset_of = dataset_of
        self._view_of_owner = view_of_owner
        self._models_came = asyncio.Event()
        self._followed: object = None  # the registry's state that is served here
        self._repository = repository
        self._artifacts = artifacts
        self._catalog = catalog
        self._stages = Stages(catalog)
        self._dispatcher = dispatcher
        self._residency = residency
        self._defaults = defaults
        self._load_patience_s = load_patience_s
        self._allow_import = allow_import
        self._remote = remote
        self._ownership = ownership or Ownership()
        self._one_at_a_time = asyncio.Lock()
        self._tasks = tasks or Tasks()

    async def restore(self) -> None:
        """Serve what the registry holds, and the models that lie in the home folder without being in it."""
        await self._adopt_found()
        models = await asyncio.to_thread(self._repository.models)
        self._residency.know(models)
        if self._remote is not None:
            self._remote.serve(models)
        for model in models:
            try:
                self._dispatcher.configure(self._catalog.add_model(model))
            except BadOption as error:
                log.error("model not served model=%s reason=%r", model.key, error.message)
        current: dict[str, Function] = {}
        written = await asyncio.to_thread(self._artifacts.functions)  # before what another server deploys now
        served = await asyncio.to_thread(self._repository.served)
        for deployment in sorted(served, key=lambda each: is_pipeline(each.spec)):  # stages before pipelines
            try:
                function = await self._restored(deployment)
                self._dispatcher.configure(function)
            except (BadOption, UnknownFunction, DamagedRecord) as error:
                log.error(
                    "function not served function=%s version=%d reason=%r",
                    deployment.function,
                    deployment.version,
                    error.message,
                )
                continue
            self._catalog.add_function(function, SERVED_DEPLOYMENTS)
            current[function.name] = function
        for function in current.values():
            await asyncio.to_thread(self._artifacts.write_function, function.name, file_form(function))
        for name in sorted(written - current.keys()):
            aside = await asyncio.to_thread(self._artifacts.set_aside_function, name)
            log.warning(
                "the registry has no such function, or it is not served function=%s file=%s", name, aside
            )
        await self._look_for_files()

    def follow(self) -> None:
        """From now on serve what other servers of the registry register, deploy and delete, too."""
        self._tasks.always("follow registry", self._follow)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_FOLLOW_S)
            try:
                await self.refresh()
            except (ServiceError, SQLAlchemyError, OSError) as error:  # the registry, which may be back soon
                log.error("registry not followed reason=%r", str(error))

    async def refresh(self) -> None:
        """Serve what the registry holds now. Raises the registry's errors."""
        state = await asyncio.to_thread(self._repository.state)
        if state == self._followed:
            return
        async with self._one_at_a_time:
            models = await asyncio.to_thread(self._repository.models)
            stored = {model.key: model for model in models}
            await self._forget_models(lambda model: model.key in stored and not _is_of(model, stored))
            self._serve_models(stored)
            await self._refresh_functions(await asyncio.to_thread(self._repository.served))
            await self._forget_models(lambda model: model.key not in stored)
        self._followed = state  # what came while it was read is seen the next time

    async def _forget_models(self, is_gone: Callable[[ModelVersion], bool]) -> None:
        for model in filter(is_gone, self._catalog.models()):
            function = self._catalog.remove_model(model)
            if function is not None:
                self._dispatcher.remove(function)
            await self._residency.unload({model.key})
            log.info("model removed by another server model=%s", model.key)

    def _serve_models(self, stored: Mapping[str, ModelVersion]) -> None:
        known = {model.key for model in self._catalog.models()}
        missing = [model for model in stored.values() if model.key not in known]
        self._residency.know(missing)
        for model in missing:
            try:
                self._dispatcher.configure(self._catalog.add_model(model))
                log.info("model registered by another server model=%s", model.key)
            except BadOption as error:
                log.error("model not served model=%s reason=%r", model.key, error.message)
        if self._remote is not None:
            self._remote.serve(missing)
        if missing:
            self._models_came.set()

    async def _refresh_functions(self, served: Sequence[Deployment]) -> None:
        stored = {(each.function, each.version) for each in served}
        for known in self._catalog.functions():
            name = known[-1].name
            if all((name, each.version) not in stored for each in known):
                self._retire(self._catalog.remove_function(name))
                log.info("function deleted by another server function=%s", name)
        there = {(each.name, each.version) for each in self._catalog if not each.bare}
        fresh = [each for each in served if (each.function, each.version) not in there]
        for deployment in sorted(fresh, key=lambda each: is_pipeline(each.spec)):  # stages before pipelines
            name, version = deployment.function, deployment.version
            if any(each > version for other, each in there if other == name):
                continue  # it is served no more but for who began with it at the other server
            try:
                function = await self._restored(deployment)
                self._dispatcher.configure(function)
            except (BadOption, UnknownFunction, DamagedRecord) as error:
                log.error(
                    "function not served function=%s version=%d reason=%r", name, version, error.message
                )
                continue
            self._retire(self._catalog.add_function(function, SERVED_DEPLOYMENTS))
            log.info("function deployed by another server function=%s version=%d", name, version)
            for group in function.groups:
                self._tasks.once("spread", self._residency.spread(group), f"spread {name}")

    async def _restored(self, deployment: Deployment) -> Function:
        """The function of a deployment. Raises `BadOption`, `UnknownFunction`, `DamagedRecord`."""
        try:
            return await self._read(deployment)
        except (TypeError, KeyError, ValueError, AttributeError) as exc:
            raise BadOption(
                f"its specification cannot be read ({type(exc).__name__}: {exc}): it is damaged, or of a "
                "newer release; deploy it anew"
            ) from exc

    async def _read(self, deployment: Deployment) -> Function:
        name, version, spec = deployment.function, deployment.version, deployment.spec
        if is_pipeline(spec):
            for stage in spec["pipeline"]:
                if "function" in stage:
                    await self._restore_stage(stage["function"], int(stage["version"]))
            return pipeline_function(name, version, spec, self._stages)
        permitted = self._permitted(name, version, spec)
        fit = fit_from(deployment.fit)
        function = function_of(name, version, permitted, self._catalog, self._defaults, fit)
        return with_feedback(function, deployment.feedback, deployment.refit)

    async def _restore_stage(self, name: str, version: int) -> None:
        """Serve a version that only pipelines use. Raises as `_restored`."""
        with contextlib.suppress(UnknownFunction, VersionGone):
            self._stages.resolve(name, str(version))
            return
        deployment = await asyncio.to_thread(self._repository.deployment, name, version)
        if deployment is None:
            raise UnknownFunction(f"there is no version {version} of {name!r} here")
        stage = await self._restored(deployment)
        self._dispatcher.configure(stage)
        self._stages.keep(stage)

    async def register(
        self,
        manifest: dict[str, Any],
        weights: IO[bytes] | None,
        others: Mapping[str, IO[bytes]] = MappingProxyType({}),
        view: View = WHOLE,
        function: str = "",
    ) -> ModelVersion:
        """Store and serve an uploaded model version. Raises `BadOption`, `BodyTooLarge`, `Forbidden`.

        others: the files that it lists beside its weights, by name. view: of whoever registers it, and owns
        it from then on. function: for which it was trained: who sees that sees the model.
        """
        async with self._one_at_a_time:
            name = check_name(manifest.get("name"), "model.json: 'name'")
            if manifest.get("version") is None:
                version = await asyncio.to_thread(self._repository.next_model_version, name)
                version = await asyncio.to_thread(self._artifacts.next_version, name, version)
                manifest = {**manifest, "version": version}
            return await self._serve_model(
                lambda: self._artifacts.install(manifest, weights, others), name, view, function=function
            )

    async def register_directory(self, directory: Path, view: View = WHOLE) -> ModelVersion:
        """Store and serve the model version in a directory of this host. Raises as `register`."""
        async with self._one_at_a_time:
            manifest = await asyncio.to_thread(self._artifacts.read_manifest, directory)
            name = check_name(manifest.get("name"), "model.json: 'name'")
            return await self._serve_model(lambda: self._artifacts.adopt(directory), name, view, directory)

    async def register_variant(self, directory: Path) -> ModelVersion:
        """Store and serve a variant, made in a directory of this host, of a model that is served.

        It is whose its model is. Raises `BadOption`, `UnknownFunction` where there is no such model.
        """
        async with self._one_at_a_time:
            manifest = await asyncio.to_thread(self._artifacts.read_manifest, directory)
            model = model_from_manifest(manifest, directory)
            if not is_variant(model.name):
                raise BadOption(f"{model.name!r} is not the name of a variant")
            self._catalog.model(base_of(model.name), model.version)
            return await self._store_model(
                lambda: self._artifacts.adopt(directory), model.name, self._catalog, directory
            )

    def users_of(self, model: ModelVersion) -> list[str]:
        """The functions that are served and may ask it, by name; none of a model that answers by itself."""
        return sorted(
            {
                each.name
                for each in self._catalog
                if not each.bare and (model in each.asked or model == each.parity)
            }
        )

    async def remove_variant(self, model: ModelVersion) -> None:
        """Serve a variant no longer, and forget its files. Raises `BadOption` where a function names it."""
        async with self._one_at_a_time:
            if users := self.users_of(model):
                raise BadOption(f"{model.key} is a member of the function {users[0]}; deploy that without it")
            await asyncio.to_thread(self._repository.remove_model, model)
            function = self._catalog.remove_model(model)
            if function is not None:
                self._dispatcher.remove(function)
            await self._residency.unload({model.key})
            await asyncio.to_thread(self._artifacts.remove_model, model.directory, None)
            self._models_came.set()  # of other candidates, one is gone
            log.info("variant removed model=%s", model.key)

    def check_may_deploy(self, name: str, view: View) -> None:
        """Whether a caller may deploy a function of that name. Raises `Forbidden`."""
        if self._catalog.is_model(name) and not view.sees("model", name):
            view.check_reaches("function", name)
            view.check_changes("model", name)
        self._ownership.check(view, "function", name, exists=self._catalog.is_function(name))

    async def deploy(
        self,
        name: str,
        body: Mapping[str, Any],
        fit: Fit | None = None,
        view: View = WHOLE,
        rows_for: RowsFor | None = None,
        found: Mapping[str, Any] | None = None,
        instead_of: int | None = None,
        keeps_fit: bool = True,
    ) -> Function:
        """Make `body` the current deployment of a function: loaded first, then switched to, all or nothing.

        fit: what was fitted of its members; None = as for what answers now, where that has these members too
        and `keeps_fit`.
        view: of whoever deploys it, who sees its models, and owns it from then on if it is new. rows_for: by
        which it is found out whether its `cascade` holds; a proxy that does not keep it is not used. found:
        what was found of the same models before. instead_of: the version that it was compared with, 0 for
        none; None = whichever answers.
        Raises `BadOption`, `UnknownFunction` (a model), `Overloaded` (no worker, or no room, in time; another
        version answers by now), `Forbidden`.
        """
        async with self._one_at_a_time:
            check_name(name, "function")
            self.check_may_deploy(name, view)
            seen = SeenCatalog(self._catalog, view)
            if is_pipeline(body):
                spec = pipeline_spec(name, body, seen)
                exists = self._catalog.is_function(name) or self._catalog.is_model(name)
                async with self._ownership.making(view, "function", name, exists=exists):
                    return await self._deploy_pipeline(name, spec, instead_of)
            if body.get("variants"):
                body, fit = among_variants(name, body, seen, self._variants)
            wants = wants_from(name, body.get("wants"))
            candidates: tuple[ModelVersion, ...] = ()
            if wants is not None:
                # Of one that is there its owner's models, whoever deploys it: it follows what they see.
                owned = self._catalog.is_function(name)
                candidates = await self._candidates(
                    name, wants, self._view_of_owner("function", name) if owned else view
                )
            spec = spec_from(name, body, seen, candidates)
            if found is not None:
                spec = {**spec, "cascade_found": dict(found)}
            exists = self._catalog.is_function(name) or self._catalog.is_model(name)
            async with self._ownership.making(view, "function", name, exists=exists):
                return await self._deploy(name, spec, fit, rows_for, instead_of, keeps_fit=keeps_fit)

    async def _deploy(
        self,
        name: str,
        spec: dict[str, Any],
        fit: Fit | None,
        rows_for: RowsFor | None,
        instead_of: int | None = None,
        *,
        keeps_fit: bool = True,
    ) -> Function:
        draft = function_of(name, 0, spec, self._catalog, self._defaults, is_draft=True)
        for policy in (draft.policy, draft.select):
            if _is_import_path(policy) and not self._allow_import:
                raise BadOption(
                    f"function {name}: the policy {policy!r} is an import path, which runs code; "
                    "start the server with --allow-import to permit it"
                )
        if draft.wants is not None:
            spec = await self._with_first(draft, spec)
        if fit is None and keeps_fit:
            fit = self._fit_before(draft)
        draft = function_of(name, 0, spec, self._catalog, self._defaults, fit)
        self._dispatcher.check(draft)
        await self._load(draft.members)
        spec = self._with_features(draft, spec)
        spec = await self._with_proxy(draft, spec, rows_for)

        def made(version: int) -> Function:
            return function_of(name, version, spec, self._catalog, self._defaults, fit)

        return await self._switch(name, spec, made, fit, instead_of)

    async def _deploy_pipeline(
        self, name: str, spec: dict[str, Any], instead_of: int | None = None
    ) -> Function:
        for group in pipeline_function(name, 0, spec, self._stages).groups:
            await self._load(group)
        return await self._switch(
            name,
            spec,
            lambda version: pipeline_function(name, version, spec, self._stages),
            instead_of=instead_of,
        )

    async def _switch(
        self,
        name: str,
        spec: dict[str, Any],
        made: Callable[[int], Function],
        fit: Fit | None = None,
        instead_of: int | None = None,
    ) -> Function:
        """Have it answered by a new deployment. made: the function in a version."""

        def stage(version: int) -> None:
            self._artifacts.stage_function(name, file_form(made(version)))

        try:
            # All that takes space is written before the deployment counts.
            kept = None if fit is None else fit.to_json()
            deployment = await asyncio.to_thread(self._repository.deploy, name, spec, stage, kept, instead_of)
        except Exception:
            await asyncio.to_thread(self._artifacts.unstage_function, name)
            raise
        function = made(deployment.version)
        self._dispatcher.configure(function)
        self._retire(self._catalog.add_function(function, SERVED_DEPLOYMENTS))
        await asyncio.to_thread(self._artifacts.publish_function, name, file_form(function))
        log.info(
            "function deployed function=%s version=%d members=%s",
            name,
            function.version,
            ",".join(model.key for model in function.members),
        )
        for group in function.groups:
            self._tasks.once("spread", self._residency.spread(group), f"spread {name}")
        return function

    async def deployments(self, name: str, limit: int) -> list[Deployment]:
        """The last deployments of a function, served or not, the newest first."""
        return await asyncio.to_thread(self._repository.deployments, name, limit)

    async def delete(self, name: str) -> None:
        """Serve a function no longer, in any version. Raises `UnknownFunction`; `BadOption` for a pipeline's
        stage, whichever server has deployed that.
        """
        async with self._one_at_a_time:
            if not self._catalog.is_function(name):
                raise UnknownFunction(f"there is no function {name!r} here")
            await asyncio.to_thread(self._repository.delete_function, name)
            await asyncio.to_thread(self._artifacts.remove_function, name)
            self._retire(self._catalog.remove_function(name))
            self._ownership.forget("function", name)
            log.info("function deleted function=%s", name)

    async def load(self, name: str) -> None:
        """Make a function or model resident, whatever must leave for it. Raises as `deploy`."""
        function = self._catalog.versions(name)[-1]
        for group in function.groups:
            await self._load(group)
        self._catalog.set_loaded(name, True)

    async def unload(self, name: str) -> None:
        """Answer for a function or model no longer, until it is loaded; others keep the models they share."""
        self._catalog.set_loaded(name, False)
        needed = {
            model.key
            for function in self._catalog
            if self._catalog.is_loaded(function.name) and not function.bare
            for model in function.asked
        }
        mine = {model.key for function in self._catalog.versions(name) for model in function.asked}
        await self._residency.unload(mine - needed)

    def _retire(self, functions: list[Function]) -> None:
        """These have left the catalog; what is a stage yet is served on."""
        for function in self._stages.let_go(functions):
            self._dispatcher.remove(function)
            if self._wishes is not None:
                self._wishes.forget(function)

    async def close(self) -> None:
        """Stop what runs in the background."""
        await self._tasks.close()

    # ── functions by wish ───────────────────────────────────────────────────────────────────────────────

    def follow_wishes(self) -> None:
        """From now on a model that comes is a candidate of each wish that it fits."""
        self._models_came.set()  # some may have come while no server ran
        self._tasks.always("wishes", self._follow_wishes)
        self._tasks.always("files of candidates", self._follow_files)

    async def _follow_files(self) -> None:
        while True:
            await asyncio.sleep(_FILES_LOOK_S)
            await self._look_for_files()

    async def _look_for_files(self) -> None:
        """Which candidates of functions by wish have lost a file."""
        if self._wishes is not None:
            candidates = {model for function in self._catalog for model in function.candidates}
            await self._wishes.look_for_files(candidates)

    async def _follow_wishes(self) -> None:
        again_s: float | None = None  # None: once models come
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(again_s):
                    await self._models_came.wait()
            if not self._lease.is_held:  # it may be, before what came is seen to
                await asyncio.sleep(_LEASE_LOOK_S)
                continue
            self._models_came.clear()
            again_s = None
            for served in self._catalog.functions():
                if served[-1].wants is not None and not await self._renewed(served[-1].name):
                    again_s = _RENEW_AGAIN_S

    async def _renewed(self, name: str) -> bool:
        """Deploy a function by wish anew if other models than before could answer it.

        False where that may be done a little later: no worker has room, the registry is locked, a disk full,
        or another server has deployed or deleted it, which is not known here yet.
        """
        async with self._one_at_a_time:
            if not self._catalog.is_function(name):
                return True
            function = self._catalog.versions(name)[-1]
            if function.wants is None:
                return True
            try:
                found = await self._candidates(name, function.wants, self._view_of_owner("function", name))
                if {model.key for model in found} == set(function.named):
                    return True
                newest = (await asyncio.to_thread(self._repository.deployments, name, 1))[0]
                if newest.version != function.version:
                    return False
                spec = {**newest.spec, "candidates": [model.key for model in found]}
                draft = function_of(name, 0, spec, self._catalog, self._defaults, is_draft=True)
                spec = await self._with_first(draft, spec)
                if set(spec["candidates"]) != set(function.named):  # a newcomer may not be loadable
                    await self._deploy(name, spec, None, None, instead_of=function.version)
            except (ServiceError, SQLAlchemyError, OSError) as error:
                log.warning("wish not renewed function=%s reason=%r", name, str(error))
                return not isinstance(error, Overloaded | NoSpace | SQLAlchemyError | OSError)
            return True

    async def _candidates(self, name: str, wants: Wants, view: View) -> tuple[ModelVersion, ...]:
        """The models that a caller sees and that could answer. Raises `BadOption`, `UnknownFunction`."""
        seen = SeenCatalog(self._catalog, view)
        if wants.dataset is not None and not view.sees("dataset", wants.dataset):
            raise unknown_dataset(wants.dataset)
        alike = None
        if wants.purpose is not None:
            alike = self._alike(name, wants.purpose, seen)
        models = seen.models()
        known: Mapping[str, str | None] = {}
        if wants.dataset is not None:
            known = await asyncio.to_thread(lambda: {each.key: self._dataset_of(each) for each in models})
        return candidates_for(name, wants, models, lambda model: known.get(model.key), alike)

    def _alike(self, name: str, purpose: str, seen: SeenCatalog) -> ModelVersion:
        """A model that does what a purpose does. Raises `UnknownFunction`.

        Of a purpose that is gone since function `name` was wished for it, who has stood for it so far.
        """
        try:
            return seen.versions(purpose)[-1].members[0]
        except UnknownFunction:
            before = self._catalog.versions(name)[-1] if self._catalog.is_function(name) else None
            if before is None or before.wants is None or before.wants.purpose != purpose:
                raise
            return before.members[0]

    async def _with_first(self, draft: Function, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The specification, its candidates as far as they can be loaded, the one that answers at rest first.

        Who has lost a file stays one, and answers when that is back.

        Raises `BadOption` with the nearest that can be had where none keeps what is wished.
        """
        assert self._wishes is not None, "only a server that decides on wishes takes them"
        fine: list[ModelVersion] = []
        await self._wishes.look_for_files(draft.candidates)
        for model in draft.candidates:
            try:
                if self._wishes.has_its_files(model) and not self._wishes.is_measured(model):
                    await self._load((model,))
                fine.append(model)
            except BadOption as error:
                if len(draft.candidates) == 1:
                    raise
                log.warning(
                    "no candidate function=%s model=%s reason=%r", draft.name, model.key, error.message
                )
        if not fine:
            raise BadOption(f"function {draft.name}: none of {members_named(draft.candidates)} can be loaded")
        first = self._wishes.at_rest(replace(draft, candidates=tuple(fine), members=(fine[0],))).chosen
        ordered = sorted((model.key for model in fine), key=lambda key: (key != first, key))
        return {**spec, "candidates": ordered}

    def _permitted(self, name: str, version: int, spec: Mapping[str, Any]) -> dict[str, Any]:
        """A deployment's specification without the import paths that this server may not run.

        It was deployed while the server might; what is there where nothing is said decides in their stead.
        """
        barred = {field for field in ("policy", "select") if _is_import_path(spec.get(field))}
        if self._allow_import or not barred:
            return dict(spec)
        for field in sorted(barred):
            log.error(
                "policy not used function=%s version=%d %s=%s reason='an import path runs code, and the "
                "server runs without --allow-import'",
                name,
                version,
                field,
                spec[field],
            )
        if "policy" in barred:
            barred.add("policy_options")
        return {field: value for field, value in spec.items() if field not in barred}

    def _fit_before(self, draft: Function) -> Fit | None:
        """The fit of what answers under the name now, where it is about the members of the new one."""
        if not self._catalog.is_function(draft.name):
            return None
        before = self._catalog.versions(draft.name)[-1]
        alike = {model.key for model in draft.members} <= {*before.named, *(m.key for m in before.members)}
        return before.fit if alike and before.task == draft.task else None

    def _with_features(self, draft: Function, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The specification, with the width of the vectors where it answers such: known once it is loaded."""
        if not any("features" in output.dims for output in draft.task.columns):
            return dict(spec)
        (model,) = draft.members
        width = model.features or self._residency.features(model)
        if not width:
            raise BadOption(
                f"function {draft.name}: {model.key} has no features, of which {draft.task.name} is made"
            )
        return {**spec, "features": width}

    async def _with_proxy(
        self, draft: Function, spec: dict[str, Any], rows_for: RowsFor | None
    ) -> dict[str, Any]:
        """The specification, with what was found of the proxy that it asks for."""
        asked = cascade_asked(draft.name, spec.get("cascade"))
        if asked is None:
            return spec
        proxy = None
        if asked.proxy is not None:
            model, _, version = asked.proxy.rpartition("/")
            proxy = self._catalog.model(model, int(version))
            await self._load((proxy,))
        if spec.get("cascade_found") is not None:
            return spec
        if proxy is None and len(draft.members) < 2:
            only = draft.members[0].name
            return {
                **spec,
                "cascade_found": {"reason": f"{only} answers alone: name another model as 'proxy'"},
            }
        if rows_for is None or self._proxies is None:
            raise BadOption(
                f"function {draft.name}: whether its cascade holds is shown by rows that taught none of its "
                "models: say of which dataset, as 'dataset' of 'cascade'"
            )
        rows = await rows_for([*draft.members, *(() if proxy is None else (proxy,))])
        model_used, found = await self._proxies.find(draft, asked, proxy, rows)
        return {**spec, "cascade_found": found_form(found, model_used)}

    async def _load(self, members: tuple[ModelVersion, ...]) -> None:
        try:
            async with asyncio.timeout(self._load_patience_s):
                await self._residency.load(members)
                if self._remote is not None:
                    await self._remote.load(members)
        except TimeoutError:
            raise Overloaded(
                f"no worker loaded {members_named(members)} within {self._load_patience_s:g} s; "
                "GET /v1/workers says how they fare",
                retry_after_s=10.0,
            ) from None

    async def _serve_model(
        self,
        store: Callable[[], tuple[dict[str, Any], Path]],
        name: str,
        view: View,
        given: Path | None = None,
        function: str = "",
    ) -> ModelVersion:
        """`given`: the folder that somebody else made and this server must not remove."""
        is_function = self._catalog.is_function(name)
        if is_function and not view.sees("function", name):
            view.check_reaches("model", name)
            view.check_changes("function", name)
        exists = is_function or self._catalog.is_model(name)
        async with self._ownership.making(view, "model", name, exists=exists, function=function):
            return await self._store_model(store, name, SeenCatalog(self._catalog, view), given)

    async def _store_model(
        self,
        store: Callable[[], tuple[dict[str, Any], Path]],
        name: str,
        models: Models,
        given: Path | None,
    ) -> ModelVersion:
        if self._catalog.is_function(name):
            raise BadOption(f"{name!r} is the name of a function; functions and models share their names")
        known = {model.directory for model in self._catalog.models()}
        manifest, directory = await asyncio.to_thread(store)
        try:
            if self._remote is not None:
                self._remote.check(model_from_manifest(manifest, directory))
            await asyncio.to_thread(check_backbone, models, model_from_manifest(manifest, directory))
            model = await asyncio.to_thread(self._repository.add_model, manifest, directory)
        except Exception:
            if directory not in known:
                await asyncio.to_thread(self._artifacts.remove_model, directory, given)
            raise
        self._dispatcher.configure(self._catalog.add_model(model))
        if self._remote is not None:
            self._remote.serve((model,))
        self._models_came.set()
        log.info("model registered model=%s task=%s accuracy=%.4f", model.key, model.task, model.accuracy)
        if not is_variant(model.name):
            self._tasks.once("spread", self._residency.spread((model,)), f"spread {model.key}")
        return model

    async def _adopt_found(self) -> None:
        models = await asyncio.to_thread(self._repository.models)
        known, named = {model.directory for model in models}, {model.name for model in models}
        for directory in await asyncio.to_thread(lambda: list(self._artifacts.found())):
            if directory in known:
                continue
            try:
                manifest, place = await asyncio.to_thread(self._artifacts.adopt, directory)
                name = base_of(manifest["name"])
                if name not in named:
                    await self._ownership.found("model", name)
                model = await asyncio.to_thread(self._repository.add_model, manifest, place)
                log.info("model found and registered model=%s", model.key)
            except (BadOption, DamagedRecord) as error:
                log.error("model not registered directory=%s reason=%r", directory, error.message)


def _is_import_path(policy: object) -> bool:
    return isinstance(policy, str) and ":" in policy


def fit_from(stored: Mapping[str, Any] | None) -> Fit | None:
    """A fit as the registry has it; None for none.

    Raises `BadOption` for one that cannot be read: what answers by it must not answer otherwise.
    """
    if stored is None:
        return None
    try:
        return Fit.from_json(stored)
    except ValueError as exc:
        raise BadOption(f"what was fitted of its members cannot be read: {exc}; deploy it anew") from exc


def _is_of(model: ModelVersion, stored: Mapping[str, ModelVersion]) -> bool:
    """Whether it is made of the files that the registry has of it: a variant may be made anew."""
    return model.sha256 == stored[model.key].sha256
