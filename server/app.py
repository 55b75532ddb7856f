"""The one place where the server's parts are built, wired and closed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from gpu_worker.model_files.endpoints import AllowedEndpoints
from gpu_worker.wire.devices import REMOTE, device_names
from server.access.door import Access
from server.access.ended_sessions import EndedSessions
from server.access.owners import view_of_owner
from server.access.ownership import Ownership
from server.access.sessions import Sessions
from server.access.things import Things
from server.access.token_registry import MARK, TokenRegistry, tokens_of_files
from server.access.tokens import Tokens
from server.access.view import Views
from server.administration.audit import AuditLog
from server.administration.audit_file import AuditFile
from server.administration.sessions import SessionService
from server.administration.tokens import TokenService
from server.cache.answer_file import AnswerFile
from server.cache.choice import choose_store
from server.cache.counts import CacheCounts
from server.cache.files import FileStamps
from server.cache.stores import new_store
from server.capacity.autoscaler import Autoscaler
from server.capacity.observed import FleetReader, kind_of
from server.capacity.policies.by_name import policy_named as capacity_policy_named
from server.capacity.prices import Price, check_kinds, prices_of
from server.capacity.timeline import Timeline
from server.capacity.workforce import Workforce
from server.catalog.catalog import Catalog
from server.catalog.function_spec import single_model_function
from server.catalog.functions import Function, ModelVersion
from server.catalog.latencies import Latencies
from server.catalog.selections import Selections
from server.catalog.variants import Variants
from server.catalog.wishes import HeldOut, held_out_of
from server.dashboard import pages
from server.dashboard.confusions import Confusions
from server.dashboard.dashboard import Dashboard
from server.dashboard.error_page import refused_page, shown_error
from server.dashboard.live import Live
from server.errors import ShuttingDown
from server.housekeeping import Housekeeping, Measured
from server.http.backpressure import Route
from server.http.gateway import Gateway
from server.http.large_json import LargeJson
from server.http.listener import Running
from server.http.native.choice import choose_front
from server.http.replies import map_errors
from server.lease import Lease, seen_now
from server.machine import memory_bytes
from server.observability.history import History, server_id
from server.observability.metrics import Exposition, Metrics
from server.observability.readings import Reading, reading_of
from server.observability.recorder import Recorder
from server.placement.policies.by_name import is_spread, placement_named
from server.placement.policy import Capacity
from server.placement.profiling import Profiler
from server.placement.remote_models import RemoteModels
from server.placement.residency import Residency
from server.publisher import Publisher
from server.routes import (
    answers,
    api_docs,
    capacity,
    classify,
    datasets,
    deployments,
    feedback,
    functions,
    health,
    models,
    oip,
    places,
    servers,
    sources,
    training,
    workers,
)
from server.routes import (
    audit as audit_routes,
)
from server.routes import (
    bulk as bulk_routes,
)
from server.routes import (
    tokens as token_routes,
)
from server.routes import (
    variants as variant_routes,
)
from server.routes.codec import Codec
from server.routes.infer import InferRoute
from server.scheduling.bulk_sharing import bulk_sharing_named
from server.scheduling.core import Scheduler
from server.services import Services
from server.serving.bulk_calls import BulkCalls
from server.serving.cached_calls import CachedCalls
from server.serving.call_service import CallService
from server.serving.contexts import MOST_CONTEXTS, Contexts
from server.serving.dispatcher import Dispatcher
from server.serving.feedback import FeedbackService
from server.serving.kept_file import KeptFile
from server.serving.learned_state import LearnedState
from server.serving.pipelines.calls import PipelineCalls
from server.serving.pipelines.cropping import Cropper
from server.serving.prediction_ids import PredictionIds
from server.serving.proxies import Proxies
from server.serving.proxy_trials import ProxyTrials
from server.serving.recent_answers import RecentAnswers
from server.serving.scheduler_adapter import QueueBounds
from server.serving.shadow_rows import ShadowRows
from server.serving.wishes import Wishes
from server.setting_files import read_setting
from server.settings import Settings, WorkerBounds, is_loopback, port_range
from server.storage import StartError, Storage, open_storage
from server.store.audit import AuditRepository
from server.store.bulk import BulkControlRepository
from server.store.feedback import FeedbackBounds, FeedbackRepository
from server.store.history import HistoryRepository
from server.store.latencies import LatencyFiles
from server.store.leases import LeaseRepository
from server.store.leftovers import remove_leftovers
from server.store.retraining import RetrainingRepository
from server.store.sessions import EndedSessionRepository
from server.store.things import ThingRepository
from server.store.tokens import TokenRepository
from server.store.training import TrainingRepository
from server.store.variant_orders import VariantOrderRepository
from server.store.variants import VariantRepository
from server.supervision import Supervisor, Tasks
from server.training.checkpoints.parameters import ParameterStore
from server.training.datasets.connections import SourceConnections
from server.training.datasets.datasets import Datasets
from server.training.datasets.snapshot import SnapshotLimits
from server.training.drift import Drift
from server.training.jobs.service import Training
from server.training.promotion.deployer import Deployer
from server.training.promotion.refit import Refits
from server.training.retraining import Retrainings
from server.training.trainers import Trainers
from server.training.variants.measuring import Measuring
from server.training.variants.orders import VariantOrders
from server.version import VERSION
from server.workers.command_lines import (
    command_on,
    local_command,
    media_roots,
    remote_command,
    sees_home,
    sees_media,
)
from server.workers.devices import count_cuda_devices, worker_devices
from server.workers.driver_link import ClusterError
from server.workers.file_rows import FileRows
from server.workers.local import LocalPool
from server.workers.nodes import Node, devices_of_cluster
from server.workers.offered_pictures import PictureFiles
from server.workers.pool import ElasticPool, Worker
from server.workers.ray import NodeFiles, RayPool, driver_command, first_look, ray_timing
from server.workers.supervised_pool import Timing

__all__ = ["App", "create_app"]

log = logging.getLogger("ml_udf.server")

_THREADS = 32
_CLUSTER_S = 30.0  # that a cluster has to let this server in, and to say who belongs to it
_MOST_CACHE_BYTES = 1 << 30  # where nobody says how many


class App:
    """A server: its parts are built when the lifespan of `api` begins, and closed when it ends.

    The lifespan's state holds what the listener needs of them: `application` and `drain`.
    """

    def __init__(
        self,
        settings: Settings,
        access: Access,
        storage: Storage,
        environment: Mapping[str, str] | None = None,
        cluster_environment: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._cluster_environment = cluster_environment
        self._access = access
        self._storage = storage
        self.api = FastAPI(
            title="ml_udf",
            version=VERSION,
            lifespan=self._lifespan,
            docs_url=None,  # its page asks another host for its scripts: routes/api_docs.py has ours
            servers=[{"url": ".", "description": "this server, below whatever prefix"}],
            redoc_url=None,
            redirect_slashes=False,
        )
        routes = (
            health,
            oip,
            functions,
            deployments,
            models,
            variant_routes,
            places,
            workers,
            servers,
            capacity,
            classify,
            feedback,
            datasets,
            answers,
            sources,
            training,
            bulk_routes,
            token_routes,
            audit_routes,
            api_docs,
            pages,
        )
        for route in routes:
            self.api.include_router(route.router)
        map_errors(self.api, shown_error)
        self.ended_by = ""  # what the server cannot go on without, if that is why it stopped

    def gateway(self, route: Route, state: Mapping[str, Any]) -> Gateway:
        """What stands before `route` and `api`; `state`: of the requests to `api`."""
        dashboard, services = state.get("dashboard"), state.get("services")
        return Gateway(
            self.api,
            self._access,
            route,
            state,
            max_body_bytes=self._settings.max_body_bytes,
            max_upload_bytes=self._settings.max_model_bytes,
            error_page=None if dashboard is None else functools.partial(refused_page, dashboard),
            audit=None if services is None else services.audit,
        )

    def end(self, reason: str) -> None:
        """Stop a server that cannot go on."""
        self.ended_by = reason
        signal.raise_signal(signal.SIGTERM)  # as an operator would: requests under way still finish

    @contextlib.asynccontextmanager
    async def _lifespan(self, api: FastAPI) -> AsyncIterator[Running]:
        supervisor = Supervisor(self.end)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(supervisor.callback_failed)
        # Most of them wait for a disk or a database: a registry that is locked must not keep all of them.
        loop.set_default_executor(ThreadPoolExecutor(_THREADS, "server"))
        async with contextlib.AsyncExitStack() as stack:
            running = _running(
                self._settings,
                self._access,
                self._storage,
                supervisor,
                self._environment,
                self._cluster_environment,
            )
            try:
                services = await stack.enter_async_context(running)
            except Exception as error:
                told = str(error) if isinstance(error, StartError) else f"{type(error).__name__}: {error}"
                self.ended_by = f"it cannot start: {told}"
                raise
            settings = self._settings
            codec = Codec(
                settings.max_rows,
                services.latencies.of_rows,
                settings.max_reply_bytes,
                services.dispatcher.saved_s,
                services.dispatcher.held,
                services.dispatcher.followed,
                context=services.contexts.digest,
                ids=services.ids,
            )
            infer = InferRoute(
                services.catalog,
                services.calls,
                codec,
                services.metrics,
                services.large,
                supervisor.tasks(),
                settings.max_body_bytes,
                services.views,
                services.audit,
            )
            dashboard = Dashboard(Live(supervisor.tasks()), confusions=Confusions(supervisor.tasks()))
            try:
                yield {
                    "application": self.gateway(infer, {"services": services, "dashboard": dashboard}),
                    "watch": services.exposition.watch,
                    "drain": functools.partial(_drain, services, dashboard, settings.drain_s),
                    "greeting": functools.partial(_greeting, self._access),
                }
            finally:
                await dashboard.close()
                services.dispatcher.drain()
                services.large.close()


def _greeting(access: Access, url: str) -> Sequence[str]:
    """Where the pages are. Whoever sits at the terminal gets a link that logs in once; no log does."""
    url = url.replace("//0.0.0.0:", "//localhost:").replace("//[::]:", "//localhost:")
    if access.tokens.is_open:
        return [f"pages: {url}/"]
    admin = access.tokens.admin()
    if admin is None or not sys.stdout.isatty():
        return [f"pages: {url}/ (ml-udf login makes a link that logs in)"]
    code = access.sessions.link(admin)
    return [f"pages: {url}/login?link={code} (logs in as {admin.name}, once, within ten minutes)"]


async def _drain(services: Services, dashboard: Dashboard, drain_s: float) -> None:
    """Refuse new rows, be no longer ready; give requests in flight and epochs under way `drain_s`."""
    services.dispatcher.drain()
    dashboard.live.end()
    services.training.events.close()
    await asyncio.gather(_drain_calls(services, drain_s), _hand_over(services, drain_s))


async def _hand_over(services: Services, drain_s: float) -> None:
    """Stop what one server alone does, so that another begins it while this one still answers rows."""
    await services.training.suspend(drain_s)
    await services.lease.leave()


async def _drain_calls(services: Services, drain_s: float) -> None:
    try:
        async with asyncio.timeout(drain_s):
            await services.calls.drained()
    except TimeoutError:
        services.dispatcher.fail_all(ShuttingDown())


def create_app(
    settings: Settings,
    token: str | None = None,
    ask_token: str | None = None,
    environment: Mapping[str, str] | None = None,
    cluster_environment: Mapping[str, str] | None = None,
) -> App:
    """The server as an application, its storage open; the rest runs from its lifespan on.

    environment: of the workers; None for this process's own. cluster_environment: the same of the process
    that speaks to the cluster, with --pool ray.

    Raises `StartError`.
    """
    names = device_names(settings.device)
    bounds = settings.workers
    if settings.pool == "ray":
        devices = devices_of_cluster(bounds.most, names, _cluster_nodes(settings, cluster_environment))
    else:
        devices = worker_devices(bounds.most, names, functools.partial(count_cuda_devices, environment))
    settings = replace(
        settings,
        home=settings.home.expanduser().absolute(),
        workers=WorkerBounds(bounds.least or len(devices), len(devices)),
        device=",".join(devices),
    )
    for flag, check in (
        ("placement", lambda: placement_named(settings.placement)),
        ("members", lambda: is_spread(settings.members)),
        ("capacity-policy", lambda: capacity_policy_named(settings.capacity_policy)),
        ("prices", lambda: _prices(settings)),
    ):
        try:
            check()
        except ValueError as exc:
            raise StartError(f"--{flag}: {exc}") from exc
    storage = open_storage(settings)
    stored = TokenRepository(storage.engine)
    ended = EndedSessions()
    ended.replace(EndedSessionRepository(storage.engine).all())
    tokens = Tokens(tokens_of_files(settings, token, ask_token), ended=ended)
    of_registry, ever_made = TokenRegistry(stored, settings.home / MARK).read()
    tokens.replace(of_registry, ever_made=ever_made)
    if not is_loopback(settings.host) and tokens.admin() is None:
        raise StartError(
            f"refusing to listen on {settings.host} without a token: whoever reaches it could run "
            "and change models and read images. Give --token-file FILE, or listen on 127.0.0.1 and make one "
            "there: ml-udf token create NAME --scope admin"
        )
    sessions = Sessions(tokens, stored.key())
    access = Access(tokens, sessions, hosts=settings.allowed_host)
    return App(settings, access, storage, environment, cluster_environment)


@contextlib.asynccontextmanager
async def _running(
    settings: Settings,
    access: Access,
    storage: Storage,
    supervisor: Supervisor,
    environment: Mapping[str, str] | None,
    cluster_environment: Mapping[str, str] | None,
) -> AsyncIterator[Services]:
    """Everything that runs, closed in the opposite order."""
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(storage.engine.dispose)
        defaults = {
            "slo_ms": settings.default_slo_ms,
            "max_batch": settings.default_max_batch,
            "policy": settings.default_policy,
            "name_media_roots": settings.name_media_roots,
        }
        things = Things()
        ownership = Ownership(
            ThingRepository(storage.engine),
            things,
            "private" if settings.default_visibility == "private" else "public",
            supervisor.tasks(),
        )
        stack.push_async_callback(ownership.close)
        await ownership.start()
        named = seen_now(_server_name(settings), VERSION)
        lease = Lease(LeaseRepository(storage.engine), named, supervisor.tasks())
        stack.push_async_callback(lease.close)
        await lease.start()
        catalog = Catalog(lambda model: single_model_function(model, defaults))
        metrics = Metrics()
        latencies = Latencies(LatencyFiles(settings.home))
        bounds = QueueBounds(settings.max_queued_rows, settings.max_queued_bytes)
        measured = Measured()
        residency_of = functools.partial(
            Residency,
            workers=settings.workers.least,
            capacity=functools.partial(_capacity, settings),
            measured=measured,
            policy=placement_named(settings.placement),
            spread=is_spread(settings.members),
            starting=catalog.groups,
            profile=Profiler(latencies, worker_hang_s=settings.worker_hang_s).measure,
            patience_s=settings.worker_start_s,
            tasks=supervisor.tasks(),
            moves=metrics.moves,
        )
        bounds_of_feedback = FeedbackBounds(
            settings.max_feedback_rows, settings.max_feedback_labels, MOST_CONTEXTS
        )
        labelled = FeedbackRepository(storage.engine, bounds_of_feedback)
        key = labelled.key()
        contexts, ids = Contexts(key), PredictionIds(key)
        dispatcher = Dispatcher(
            Scheduler(
                bulk_sharing=bulk_sharing_named(settings.bulk_sharing),
                prefix_batching=settings.prefix_batching,
            ),
            bounds,
            latencies,
            metrics,
            residency_of,
            supervisor.tasks(),
            contexts,
        )
        residency = dispatcher.residency
        housekeeping = Housekeeping(
            storage.repository,
            latencies,
            dispatcher,
            residency,
            measured,
            settings.worker_hang_s,
            supervisor.tasks(),
            tidy=functools.partial(remove_leftovers, settings.home),
        )
        remote_pool = LocalPool(
            1,
            functools.partial(remote_command, settings),
            _timing(settings),
            supervisor.tasks(),
            environment,
            prefix=REMOTE,
        )
        allowed = AllowedEndpoints(settings.allow_remote, allow_plain=settings.allow_remote_plain)
        remote = RemoteModels(dispatcher, remote_pool, allowed, supervisor.tasks())
        prices = _prices(settings)
        of_registry = VariantRepository(storage.engine)
        variants = Variants(await asyncio.to_thread(of_registry.all))

        def held_out(model: ModelVersion) -> HeldOut | None:
            return held_out_of(model, variants)

        trained = TrainingRepository(storage.engine)
        wishes = Wishes(
            dispatcher,
            latencies,
            residency.swap_s,
            residency.spread,
            metrics,
            supervisor.tasks(),
            held_out=held_out,
            measured=lambda: variants.epoch,
            price_per_s=None if prices is None else functools.partial(_price_per_s, prices, residency),
            loads_able=not _scales(settings) or settings.capacity_policy == "static",
        )
        publisher = Publisher(
            storage.repository,
            storage.artifacts,
            catalog,
            dispatcher,
            residency,
            defaults,
            load_patience_s=settings.worker_start_s,
            allow_import=settings.allow_import,
            tasks=supervisor.tasks(),
            remote=remote,
            ownership=ownership,
            proxies=Proxies(dispatcher, catalog, latencies.of_rows),
            wishes=wishes,
            dataset_of=lambda model: trained.dataset_of(model.job, model.snapshot) if model.job else None,
            view_of_owner=functools.partial(view_of_owner, access.tokens, things),
            variants=variants,
            lease=lease,
        )
        await publisher.restore()
        pool = _pool(settings, supervisor, environment, cluster_environment)
        stack.push_async_callback(housekeeping.close)
        stack.push_async_callback(pool.close)
        stack.push_async_callback(remote.close)
        stack.push_async_callback(residency.close)
        stack.push_async_callback(publisher.close)
        trainers = Trainers(residency, settings.worker_start_s)
        timeline = Timeline()
        workforce = Workforce(
            pool,
            residency,
            dispatcher,
            trainers,
            settings.workers,
            device_names(settings.device),
            timeline,
            settings.worker_start_s,
            supervisor.tasks(),
        )
        stack.push_async_callback(workforce.close)
        folder = settings.home / "training"
        taken = Datasets(
            folder / "datasets",
            trained,
            SourceConnections(settings.connections_file, settings.dataset_timeout_s),
            trainers,
            SnapshotLimits(settings.max_dataset_rows, settings.max_dataset_bytes),
            ownership,
        )
        parameters = ParameterStore(folder / "checkpoints", storage.archive, settings.parameters_hot_bytes)
        jobs = Training(
            trained,
            folder,
            parameters,
            trainers,
            catalog,
            supervisor.tasks(),
            allow_import=settings.allow_import,
            most_epochs=lambda owner: _most_epochs(access.tokens, owner),
            lease=lease,
        )
        stack.push_async_callback(taken.close)
        stack.push_async_callback(jobs.close)
        audit = AuditLog(
            AuditFile(settings.home / "audit"), AuditRepository(storage.engine), supervisor.tasks()
        )
        stack.push_async_callback(audit.close)
        audit.start()
        await jobs.restore()
        jobs.follow()
        await pool.start(trainers)
        publisher.follow()
        publisher.follow_wishes()
        remote.start()
        housekeeping.start()
        learned_state = LearnedState(
            labelled, catalog, dispatcher, metrics, supervisor.tasks(), contexts, audit=audit
        )
        stack.push_async_callback(learned_state.close)
        await learned_state.start()
        shadow_rows = ShadowRows(
            dispatcher, learned_state, metrics, supervisor.tasks(), share=settings.shadow_share
        )
        stack.push_async_callback(shadow_rows.close)
        shadow_rows.start()
        proxy_trials = ProxyTrials(dispatcher, catalog, supervisor.tasks())
        stack.push_async_callback(proxy_trials.close)
        proxy_trials.start()
        profiler = Profiler(latencies, worker_hang_s=settings.worker_hang_s)
        here = server_id(settings.home, settings.port)
        variant_orders = VariantOrders(
            settings.home / "variants" / here,
            variants,
            of_registry,
            VariantOrderRepository(storage.engine, here),
            catalog,
            publisher,
            residency,
            trainers,
            Measuring(trainers, residency, profiler),
            taken,
            supervisor.tasks(),
            at_rest=dispatcher.at_rest,
            by_itself=settings.variants == "auto",
            lease=lease,
            load_patience_s=settings.worker_start_s,
        )
        stack.push_async_callback(variant_orders.close)
        variant_orders.start()
        deployer = Deployer(trainers, publisher, catalog, trained, Refits(trainers))
        retrainings = Retrainings(
            RetrainingRepository(storage.engine),
            trained,
            catalog,
            taken,
            jobs,
            deployer,
            supervisor.tasks(),
            view_of_owner=functools.partial(view_of_owner, access.tokens, things),
            audit=audit,
            lease=lease,
        )
        stack.push_async_callback(retrainings.close)
        retrainings.start()
        recent = RecentAnswers()
        drift = Drift(recent, trained, folder / "datasets", supervisor.tasks())
        stack.push_async_callback(drift.close)
        drift.start()
        cached = _answer_cache(settings, dispatcher, metrics, supervisor)
        if cached is not None:
            stack.push_async_callback(cached.close)
            cached.start()
            if settings.answer_cache_file is not None:
                kept_file = KeptFile(
                    cached.store,
                    AnswerFile(settings.answer_cache_file.expanduser().absolute()),
                    functools.partial(_cache_counts, catalog, metrics),
                    supervisor.tasks(),
                )
                stack.push_async_callback(kept_file.close)
                kept_file.start()
        pipelines = PipelineCalls(
            dispatcher, cached, Cropper(dispatcher.workers), latencies.of_rows, supervisor.tasks(), wishes
        )
        stack.push_async_callback(pipelines.close)
        bulk = BulkCalls(BulkControlRepository(storage.engine), supervisor.tasks())
        stack.push_async_callback(bulk.close)
        await bulk.start()
        calls = CallService(
            dispatcher,
            metrics,
            supervisor.tasks(),
            settings.max_queued_rows,
            shadow_rows,
            recent,
            cached,
            pipelines,
            bulk,
            wishes,
            proxy_trials,
        )
        selections = Selections(dispatcher, latencies.of_rows, functools.partial(_by_proxy, metrics))
        read = functools.partial(_reading, metrics, dispatcher, residency)
        recorder = Recorder(read, supervisor.tasks())
        stack.push_async_callback(recorder.close)
        recorder.start()
        tokens = TokenService(
            TokenRepository(storage.engine), access.tokens, supervisor.tasks(), mark=settings.home / MARK
        )
        stack.push_async_callback(tokens.close)
        tokens.start()
        sessions = SessionService(
            EndedSessionRepository(storage.engine), access.tokens.ended, tokens.endings, supervisor.tasks()
        )
        stack.push_async_callback(sessions.close)
        sessions.start()
        history = History(HistoryRepository(storage.engine, here), read, supervisor.tasks())
        stack.push_async_callback(history.close)
        await history.start()
        fleets = FleetReader(workforce, residency, dispatcher, latencies, metrics, prices, held_out=held_out)
        autoscaler = _autoscaler(settings, fleets, workforce, residency, timeline, supervisor.tasks())
        if autoscaler is not None:
            stack.push_async_callback(autoscaler.close)
            autoscaler.start()
        yield Services(
            settings=settings,
            lease=lease,
            views=Views(things),
            ownership=ownership,
            catalog=catalog,
            variants=variants,
            wishes=wishes,
            variant_orders=variant_orders,
            publisher=publisher,
            dispatcher=dispatcher,
            residency=residency,
            workforce=workforce,
            timeline=timeline,
            autoscaler=autoscaler,
            metrics=metrics,
            exposition=Exposition(
                metrics,
                dispatcher.queue_depth,
                lambda: (*workforce.states(), *remote.states()),
                supervisor,
                selections.all,
                residency.held,
                lambda: [
                    (each.function, each.version, each.what, each.index)
                    for each in drift.latest
                    if each.index is not None
                ],
                lambda: timeline.counts,
                lambda: lease.is_held,
            ),
            calls=calls,
            pipelines=pipelines,
            bulk=bulk,
            feedback=FeedbackService(labelled, learned_state, calls, metrics, ids),
            contexts=contexts,
            ids=ids,
            large=LargeJson(),
            latencies=latencies,
            selections=selections,
            datasets=taken,
            training=jobs,
            deployer=deployer,
            retrainings=retrainings,
            drift=drift,
            remote=remote,
            recorder=recorder,
            tokens=tokens,
            sessions=sessions,
            history=history,
            front=choose_front(settings.front, has_tls=settings.tls_cert is not None),
            answer_store=choose_store(settings.answer_store) if cached is not None else None,
            access=access,
            audit=audit,
        )


def _server_name(settings: Settings) -> str:
    """By which people know this server among those of its registry."""
    host = socket.gethostname()
    return f"{host}:{settings.port}" if settings.port else f"{host}, process {os.getpid()}"


def _answer_cache(
    settings: Settings, dispatcher: Dispatcher, metrics: Metrics, supervisor: Supervisor
) -> CachedCalls | None:
    nbytes = settings.answer_cache_bytes
    if nbytes < 0:
        nbytes = min(_MOST_CACHE_BYTES, memory_bytes() // 32)
    if not nbytes:
        return None
    stamps = FileStamps([str(Path(root).expanduser().absolute()) for root in settings.media_root])
    file = settings.answer_cache_file
    keying = None if file is None else AnswerFile(file.expanduser().absolute()).keying()
    try:
        store = new_store(choose_store(settings.answer_store).name, nbytes, keying)
    except MemoryError:
        raise StartError(f"--answer-cache-bytes {nbytes} is more than this machine has") from None
    return CachedCalls(dispatcher, store, stamps, metrics, supervisor.tasks())


def _cache_counts(catalog: Catalog, metrics: Metrics, function: str) -> CacheCounts | None:
    """Those of a function, named with its version; None where it is served no more."""
    return next((metrics.of(each).cache for each in catalog if each.key == function), None)


def _scales(settings: Settings) -> bool:
    """Whether there is anything that a capacity policy may change."""
    return settings.workers.least != settings.workers.most


def _autoscaler(
    settings: Settings,
    fleets: FleetReader,
    workforce: Workforce,
    residency: Residency,
    timeline: Timeline,
    tasks: Tasks,
) -> Autoscaler | None:
    """None where there is nothing to scale."""
    if not _scales(settings):
        return None
    policy = capacity_policy_named(settings.capacity_policy)
    return Autoscaler(policy, fleets, workforce, residency, timeline, tasks)


def _prices(settings: Settings) -> Mapping[str, Price] | None:
    """By kind of device; every kind that --device names has one. Raises ValueError."""
    if settings.prices is None:
        return None
    try:
        text = read_setting(settings.prices)
    except (OSError, UnicodeDecodeError) as exc:
        raise ValueError(f"{settings.prices} cannot be read: {exc}") from exc
    found = prices_of(text, str(settings.prices))
    kinds = {kind_of(device) for device in device_names(settings.device)}
    check_kinds(found, {"cpu" if kind == "auto" else kind for kind in kinds}, str(settings.prices))
    return found


def _price_per_s(
    prices: Mapping[str, Price], residency: Residency, model: ModelVersion, device: str
) -> float | None:
    """Of a device of that kind while it runs the model; None where it is priced by a size that nobody knows.

    device: "" while no worker is up, for which the first kind in the file stands.
    """
    price = prices.get(device) or next(iter(prices.values()))
    size_bytes = residency.size_bytes(model)
    if price.per_gb_s and not size_bytes:
        return None
    return price.per_hour / 3600 + price.per_gb_s * size_bytes / 1e9


def _most_epochs(tokens: Tokens, owner: str) -> int:
    """Epochs of a token's jobs that may run at a time; 0 = any number, as of who began them without one."""
    token = tokens.named(owner) if owner else None
    return 0 if token is None else token.shares.epochs


def _by_proxy(metrics: Metrics, function: Function) -> tuple[int, int]:
    stats = metrics.of(function)
    return stats.rows, stats.proxy_rows


def _reading(metrics: Metrics, dispatcher: Dispatcher, residency: Residency) -> Reading:
    return reading_of(
        time.monotonic(),
        metrics.items(),
        metrics.unresolved,
        dispatcher.queue_depth(),
        sum(used_bytes for _, used_bytes, _ in residency.held().values()),
    )


def _capacity(settings: Settings, worker: Worker) -> Capacity:
    return Capacity(settings.resident_bytes or worker.info.capacity_bytes, settings.resident_models)


def _timing(settings: Settings) -> Timing:
    timing = Timing(start_s=settings.worker_start_s)
    return replace(timing, silent_s=min(timing.silent_s, settings.worker_hang_s))


def _pool(
    settings: Settings,
    supervisor: Supervisor,
    environment: Mapping[str, str] | None,
    cluster_environment: Mapping[str, str] | None,
) -> ElasticPool:
    """The workers of this server, local or of a cluster."""
    if settings.pool == "local":
        return LocalPool(
            settings.workers.least,
            functools.partial(local_command, settings),
            _timing(settings),
            supervisor.tasks(),
            environment,
            shares_rows=True,
        )
    timing = ray_timing(settings.worker_start_s)
    return RayPool(
        settings.workers.least,
        functools.partial(command_on, settings),
        functools.partial(driver_command, settings.ray_address),
        device_names(settings.device),
        timing if settings.worker_hang_s else replace(timing, silent_s=0.0),
        supervisor.tasks(),
        cluster_environment,
        [name.strip() for name in settings.worker_env.split(",") if name.strip()],
        files=NodeFiles(
            functools.partial(sees_home, settings),
            functools.partial(sees_media, settings),
            FileRows(media_roots(settings), settings.max_input_bytes),
            PictureFiles(media_roots(settings), settings.max_input_bytes),
        ),
        ports=port_range(settings.node_ports),
        link_tasks=supervisor.tasks(),
    )


def _cluster_nodes(settings: Settings, environment: Mapping[str, str] | None) -> list[Node]:
    """Who is in the cluster as the server starts. Raises `StartError`."""
    driver = functools.partial(driver_command, settings.ray_address)
    where = settings.ray_address or "on this machine"
    try:
        nodes = asyncio.run(first_look(driver, environment, _CLUSTER_S))
    except ClusterError as exc:
        raise StartError(
            f"the Ray cluster {where} cannot be used: {exc}. This machine must be a node of it "
            "(ray start, docs/cluster.md), with the same token and the same versions of Ray and Python"
        ) from exc
    open_nodes = sorted(node.name for node in nodes if not is_loopback(node.address))
    log.info("cluster nodes=%d beyond_loopback=%s", len(nodes), open_nodes)
    return nodes
