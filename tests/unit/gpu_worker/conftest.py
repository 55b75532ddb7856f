"""Folders of images and models that the worker's tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpu_worker.engine import Engine
from gpu_worker.settings import Settings
from tests.models import hashing_model, image_model
from tests.unit.gpu_worker.pictures import noise
from tests.unit.gpu_worker.worker_process import WorkerProcess

IMAGES = 24


@pytest.fixture(scope="session")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A media root of 24 different JPEGs, 0.jpg and on."""
    folder = tmp_path_factory.mktemp("media")
    for seed in range(IMAGES):
        (folder / f"{seed}.jpg").write_bytes(noise(seed))
    return folder


@pytest.fixture(scope="session")
def paths(media: Path) -> list[bytes]:
    return [os.fsencode(media / f"{seed}.jpg") for seed in range(IMAGES)]


@pytest.fixture(scope="session")
def vgg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_model(tmp_path_factory.mktemp("models"), "vgg", "vgg")


@pytest.fixture(scope="session")
def squeezenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_model(tmp_path_factory.mktemp("models"), "squeezenet")


@pytest.fixture(scope="session")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_model(tmp_path_factory.mktemp("models"), "resnet", "resnet", seed=2)


@pytest.fixture(scope="session")
def hashing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hashing_model(tmp_path_factory.mktemp("models"), "hashing")


@pytest.fixture(scope="session")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hashing model that takes 0.4 s for a batch."""
    return hashing_model(tmp_path_factory.mktemp("models"), "slow", delay_ms=400)


@pytest.fixture
def engines() -> Iterator[Callable[..., Engine]]:
    """Makes engines on the CPU; closes them."""
    with ExitStack() as stack:

        def make(**settings: object) -> Engine:
            engine = Engine(Settings(device="cpu", **settings))  # type: ignore[arg-type]  # passed on
            stack.callback(engine.close)
            return engine

        yield make


@pytest.fixture
def workers() -> Iterator[Callable[..., WorkerProcess]]:
    """Starts worker processes; ends them."""
    with ExitStack() as stack:
        yield lambda *flags: stack.enter_context(WorkerProcess(*flags))
