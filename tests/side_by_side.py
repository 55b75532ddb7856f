"""The tests in several processes: who runs which file, what they share, and who must have the machine alone.

`make test` runs them with pytest-xdist, and every process starts clusters and servers of its own, on ports of
its own. They share one folder: in it lies what is built once for all of them, and the locks by which a test
that is marked `alone` runs while no other does. Without xdist nobody waits, and the folder is the run's.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

__all__ = [
    "locked",
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_configure_node",
    "pytest_runtest_protocol",
    "pytest_sessionstart",
    "pytest_xdist_make_scheduler",
    "shared_folder",
]

_ALONE = "alone"  # the unit of the tests that are; and the file that says which, for who gives them out
_FOLDER = "shared_folder"  # the processes' input, from the one that gives out the tests
_TURNS = pytest.StashKey["Turns"]()
_MADE = pytest.StashKey[str]()


class Turns:
    """Holds tests back while another must be alone. One object a process, over one folder of locks."""

    def __init__(self, folder: Path) -> None:
        self._door = (folder / "door.lock").open("wb")
        self._room = (folder / "room.lock").open("wb")
        self._stays = False

    @contextlib.contextmanager
    def turn(self, *, alone: bool, stays: bool = False) -> Iterator[None]:
        """Wait until the test may run; meanwhile no other is alone, or none runs at all.

        stays: it is followed by one that is alone too. The room is kept for that: else others would begin
        meanwhile, and be waited for again.
        """
        if not self._stays:
            # Who waits to be alone keeps the door shut: else the others, by turns, would never leave.
            with _held(self._door):
                fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        self._stays = alone and stays
        try:
            yield
        finally:
            if not self._stays:
                fcntl.flock(self._room, fcntl.LOCK_UN)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """What is done meanwhile no other process does that locks the same file."""
    with path.open("wb") as file, _held(file):
        yield


@pytest.fixture(scope="session")
def shared_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run see."""
    given = _given(request.config)
    return tmp_path_factory.mktemp("shared") if given is None else given


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests are made, and none goes: the collector would look at all of them thirty times."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Who gives out the tests sees no marks, and is told of the collection after this."""
    if (folder := _given(session.config)) is not None:
        with locked(folder / f"{_ALONE}.lock"):
            (folder / _ALONE).write_text("\n".join(item.nodeid for item in session.items if _is_alone(item)))


def pytest_sessionstart(session: pytest.Session) -> None:
    if (folder := _given(session.config)) is not None:
        session.config.stash[_TURNS] = Turns(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """A test with its fixtures, when it may run."""
    turns = item.config.stash.get(_TURNS, None)
    stays = nextitem is not None and _is_alone(nextitem)
    with contextlib.nullcontext() if turns is None else turns.turn(alone=_is_alone(item), stays=stays):
        return (yield)


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


# ── in the process that gives out the tests ────────────────────────────────────────────────────────


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    config: pytest.Config = node.config
    if _MADE not in config.stash:
        made = tempfile.TemporaryDirectory(prefix="ml_udf-tests-")
        config.add_cleanup(made.cleanup)
        config.stash[_MADE] = made.name
    node.workerinput[_FOLDER] = config.stash[_MADE]


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_make_scheduler(config: pytest.Config) -> Generator[None, Any, object]:
    """Whole files (`--dist loadfile`), to one process from the first on, to the next from the last on.

    So each keeps to its rooms, whose clusters and servers then are started once; and what mostly waits, the
    servers' tests, runs beside what mostly computes. What must be alone comes last, from all files one after
    the other: each time it begins, all processes but one wait for the longest test of the others.
    """
    config.option.loadscopereorder = False
    scheduler = yield
    if config.getoption("dist") != "loadfile":
        return scheduler
    file_of, assign = scheduler._split_scope, scheduler._assign_work_unit

    @functools.cache
    def tests_alone() -> frozenset[str]:
        return frozenset((Path(config.stash[_MADE]) / _ALONE).read_text().splitlines())

    def unit_of(test: str) -> str:
        return _ALONE if test in tests_alone() else str(file_of(test))

    def assign_from_an_end(node: Any) -> None:
        files = [unit for unit in scheduler.workqueue if unit != _ALONE]
        if files:
            first = files[-1] if int(node.gateway.id.removeprefix("gw")) % 2 else files[0]
            scheduler.workqueue.move_to_end(first, last=False)
        assign(node)

    scheduler._split_scope = unit_of
    scheduler._assign_work_unit = assign_from_an_end
    return scheduler


@contextlib.contextmanager
def _held(file: IO[bytes]) -> Iterator[None]:
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _given(config: pytest.Config) -> Path | None:
    """The folder that this process was given; None where the run has one process."""
    given = getattr(config, "workerinput", {}).get(_FOLDER)
    return None if given is None else Path(given)
