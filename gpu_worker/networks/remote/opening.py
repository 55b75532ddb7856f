"""A manifest that says where a model is → its network, once the endpoint has said that the model is there."""

from __future__ import annotations

import logging

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.endpoints import AllowedEndpoints, EndpointRefused
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.networks.remote.exchange import Connections
from gpu_worker.networks.remote.oip_network import OipNetwork
from gpu_worker.networks.remote.openai_network import OpenAINetwork
from gpu_worker.networks.remote.remote_network import RemoteNetwork
from gpu_worker.settings import Settings

__all__ = ["open_remote"]

_log = logging.getLogger(__name__)

_NETWORKS: dict[str, type[RemoteNetwork]] = {"oip": OipNetwork, "openai": OpenAINetwork}


def open_remote(manifest: Manifest, settings: Settings) -> RemoteNetwork:
    """Raises `ModelUnusable` where it may not be asked, or does not fit; `EndpointDown` as a network does."""
    spec = manifest.remote
    if spec is None:
        raise ModelUnusable(
            f"the model {manifest.name} has files: it runs on a device, not behind another server"
        )
    try:
        allowed = AllowedEndpoints(settings.allow_remote, allow_plain=settings.allow_remote_plain)
        key = allowed.key_for(spec.url)
    except EndpointRefused as exc:
        raise ModelUnusable(str(exc)) from exc
    connections = Connections(spec.endpoint, key, max_reply_bytes=spec.max_reply_bytes)
    network = _NETWORKS[spec.protocol](manifest, spec, connections)
    _log.info("remote model %s: %s", manifest.name, network.description)
    return network
