"""The services of one running server, as routes receive them. `app.py` alone makes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from server.access.caller import Caller
from server.access.door import Access
from server.access.ownership import Ownership
from server.access.seen_catalog import SeenCatalog
from server.access.view import View, Views
from server.administration.audit import AuditLog
from server.administration.sessions import SessionService
from server.administration.tokens import TokenService
from server.cache.choice import ChosenStore
from server.capacity.autoscaler import Autoscaler
from server.capacity.timeline import Timeline
from server.capacity.workforce import Workforce
from server.catalog.catalog import Catalog
from server.catalog.functions import Function
from server.catalog.latencies import Latencies
from server.catalog.selections import Selections
from server.catalog.variants import Variants
from server.http.large_json import LargeJson
from server.http.native.choice import ChosenFront
from server.lease import Lease
from server.observability.history import History
from server.observability.metrics import Exposition, Metrics
from server.observability.recorder import Recorder
from server.placement.remote_models import RemoteModels
from server.placement.residency import Residency
from server.publisher import Publisher
from server.serving.bulk_calls import BulkCalls
from server.serving.call_service import CallService
from server.serving.contexts import Contexts
from server.serving.dispatcher import Dispatcher
from server.serving.feedback import FeedbackService
from server.serving.pipelines.calls import PipelineCalls
from server.serving.prediction_ids import PredictionIds
from server.serving.wishes import Wishes
from server.settings import Settings
from server.training.datasets.datasets import Datasets
from server.training.drift import Drift
from server.training.jobs.service import Training
from server.training.promotion.deployer import Deployer
from server.training.retraining import Retrainings
from server.training.variants.orders import VariantOrders

__all__ = ["SeenOf", "Services", "ServicesOf", "ViewOf"]


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that a route may call. views: what each caller sees of it; no route shows anybody more."""

    settings: Settings
    lease: Lease
    views: Views
    ownership: Ownership
    catalog: Catalog
    variants: Variants
    wishes: Wishes
    variant_orders: VariantOrders
    publisher: Publisher
    dispatcher: Dispatcher
    residency: Residency
    workforce: Workforce
    timeline: Timeline
    autoscaler: Autoscaler | None
    metrics: Metrics
    exposition: Exposition
    calls: CallService
    pipelines: PipelineCalls
    bulk: BulkCalls
    feedback: FeedbackService
    contexts: Contexts
    ids: PredictionIds
    large: LargeJson
    latencies: Latencies
    selections: Selections
    datasets: Datasets
    training: Training
    deployer: Deployer
    retrainings: Retrainings
    drift: Drift
    remote: RemoteModels
    tokens: TokenService
    sessions: SessionService
    access: Access
    audit: AuditLog
    recorder: Recorder
    history: History
    front: ChosenFront
    answer_store: ChosenStore | None

    def ready(self) -> bool:
        """Whether rows would be answered: not shutting down, a worker up, a model on it if there is one."""
        states = {state.state for state in self.workforce.states()}
        if self.dispatcher.is_draining or states.isdisjoint(("up", "leaving")):
            return False
        return self.residency.holds_anything() or all(model.endpoint for model in self.catalog.models())

    def is_resident(self, function: Function) -> bool:
        """Whether all that answers it is on workers; a proxy may come later."""
        made_of = (function,) if function.pipeline is None else function.pipeline.stages
        return all(self.residency.is_resident(each.members) for each in made_of)

    def seen_by(self, view: View) -> SeenCatalog:
        """The catalog as a caller sees it."""
        return SeenCatalog(self.catalog, view)

    def resident(self) -> dict[str, list[str]]:
        """Worker → keys of the models that may be asked of it, those behind other servers too."""
        return {**self.residency.resident(), **self.remote.resident()}


async def _services(request: Request) -> Services:
    services: Services = request.state.services
    return services


ServicesOf = Annotated[Services, Depends(_services)]


async def _view(request: Request, services: ServicesOf) -> View:
    caller: Caller = request.scope["ml_udf.caller"]
    return services.views.of(caller)


ViewOf = Annotated[View, Depends(_view)]


async def _seen(view: ViewOf, services: ServicesOf) -> SeenCatalog:
    return services.seen_by(view)


SeenOf = Annotated[SeenCatalog, Depends(_seen)]
