"""The parameter store: its promises, in a folder alone and before archives; what failing archives cost."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from server.errors import ServiceError
from server.settings import Settings
from server.storage import StartError, open_storage
from server.training.checkpoints.archive import Archive, ArchiveUnknown
from server.training.checkpoints.parameters import Parameters, ParameterStore

LONG_AGO_S = 100_000.0


@pytest.fixture(params=["folder", "file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ParameterStore:
    """A store that keeps no copy longer than it must."""
    urls = {"file": f"file://{tmp_path}/far", "memory": f"memory://{tmp_path.name}"}
    url = urls.get(request.param)
    return ParameterStore(tmp_path / "near", Archive(url) if url else None)


def written(parameters: Parameters, weights: bytes, *, paused: bool = False) -> str:
    """What a worker does: its digest."""
    digest = hashlib.sha256(weights).hexdigest()
    parameters.folder.mkdir(parents=True, exist_ok=True)
    place = parameters.folder / f"{digest}.safetensors"
    place.write_bytes(weights)
    if paused:
        state_of(place).write_bytes(b"state of " + weights)
    parameters.keep(digest)
    return digest


def state_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.optimiser")


def cool(store: ParameterStore) -> None:
    """As if nobody had asked for anything for long."""
    for path in store.folder.glob("job-*/*"):
        os.utime(path, (time.time() - LONG_AGO_S,) * 2)
    store.cool(time.time())


def test_jobs_that_have_left_checkpoints_are_known_also_when_their_copies_are_gone(store: ParameterStore):
    assert store.jobs() == set()
    for job in (1, 12):
        written(store.of(job), b"weights")
    cool(store)
    shutil.rmtree(store.folder / "job-1")
    assert store.jobs() == ({"job-12"} if store.archive is None else {"job-1", "job-12"})


def test_what_was_kept_is_at_hand_also_when_its_copy_is_gone(store: ParameterStore):
    parameters = store.of(1)
    digest = written(parameters, b"weights", paused=True)
    cool(store)
    assert (store.archive is None) == bool(list(parameters.folder.iterdir()))
    place = parameters.at_hand(digest)
    assert place.read_bytes() == b"weights"
    assert state_of(place).read_bytes() == b"state of weights"


def test_what_was_never_kept_is_told(store: ParameterStore):
    with pytest.raises(ServiceError, match=r"the checkpoint never\.safetensors is no longer in"):
        store.of(1).at_hand("never")


def test_collecting_leaves_what_is_needed_and_takes_the_optimisers_too(store: ParameterStore):
    parameters = store.of(1)
    kept, gone = written(parameters, b"kept", paused=True), written(parameters, b"gone", paused=True)
    others = written(store.of(11), b"another job's")
    cool(store)
    assert parameters.collect({kept}) == 1
    assert parameters.collect({kept}) == 0
    assert parameters.at_hand(kept).read_bytes() == b"kept"
    assert store.of(11).at_hand(others).read_bytes() == b"another job's"
    with pytest.raises(ServiceError):
        parameters.at_hand(gone)
    assert not [path for path in store.folder.rglob("*") if path.name.startswith(gone)]


def test_collecting_where_nothing_was_ever_stored_takes_nothing(store: ParameterStore):
    assert store.of(3).collect(set()) == 0
    store.of(3).discard("never")


def test_a_checkpoint_that_is_taken_over_outlives_the_job_that_it_came_from(store: ParameterStore):
    theirs, ours = store.of(1), store.of(2)
    digest = written(theirs, b"weights")
    cool(store)
    ours.adopt(digest, ours.of(1))
    theirs.collect(set())
    cool(store)
    ours.adopt(digest, ours.of(1))
    assert ours.at_hand(digest).read_bytes() == b"weights"


def test_copies_within_the_budget_stay_and_the_least_used_go_first(tmp_path: Path):
    store = ParameterStore(tmp_path / "near", Archive(f"file://{tmp_path}/far"), hot_bytes=25)
    digests = [written(store.of(1), bytes([n]) * 10) for n in range(4)]
    for age, digest in enumerate(digests):
        os.utime(store.of(1).folder / f"{digest}.safetensors", (time.time() - LONG_AGO_S + age,) * 2)
    used = store.of(1).at_hand(digests[0])
    store.cool(time.time())
    assert {path.stem for path in used.parent.iterdir()} == {digests[0], digests[3]}


def test_a_copy_that_a_worker_was_just_told_of_stays_whatever_the_budget(tmp_path: Path):
    store = ParameterStore(tmp_path / "near", Archive(f"file://{tmp_path}/far"), hot_bytes=0)
    digest = written(store.of(1), b"weights")
    assert (store.of(1).folder / f"{digest}.safetensors").exists()


def test_a_checkpoint_that_was_cut_off_in_the_archive_is_not_used(tmp_path: Path):
    store = ParameterStore(tmp_path / "near", Archive(f"file://{tmp_path}/far"))
    digest = written(store.of(1), b"weights")
    cool(store)
    (tmp_path / "far" / "job-1" / f"{digest}.safetensors").write_bytes(b"weig")
    with pytest.raises(ServiceError, match="is damaged: its SHA-256 is not its name"):
        store.of(1).at_hand(digest)
    assert not list(store.of(1).folder.glob("*")), "nothing that could be taken for it is left"


def test_a_checkpoint_that_the_disk_has_changed_is_told_before_it_is_served(tmp_path: Path):
    ours = ParameterStore(tmp_path).of(1)
    digest = written(ours, b"weights")
    assert ours.whole(digest).read_bytes() == b"weights"
    ours.at_hand(digest).write_bytes(b"weighty")
    with pytest.raises(ServiceError, match="is damaged: its SHA-256 is not its name; restore the file"):
        ours.whole(digest)


def test_a_damaged_copy_of_what_the_archive_has_comes_anew(tmp_path: Path):
    ours = ParameterStore(tmp_path / "near", Archive(f"file://{tmp_path}/far"), hot_bytes=100).of(1)
    digest = written(ours, b"weights")
    ours.at_hand(digest).write_bytes(b"weighty")
    assert ours.whole(digest).read_bytes() == b"weights"


class Unwell:
    """A filesystem that fails so many times."""

    def __init__(self, times: int, error: Exception) -> None:
        self._files: Any = fsspec.filesystem("memory")
        self._times = times
        self._error = error

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def act(*arguments: Any, **more: Any) -> Any:
            self._times -= 1
            if self._times >= 0:
                raise self._error
            return getattr(self._files, name)(*arguments, **more)

        return act


def unwell(monkeypatch: pytest.MonkeyPatch, times: int, error: Exception) -> tuple[Archive, list[float]]:
    pauses: list[float] = []
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url: (Unwell(times, error), "/unwell"))
    return Archive("odd://me:secret@there/x", pauses.append), pauses


def test_an_archive_that_fails_for_a_moment_costs_a_moment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    archive, pauses = unwell(monkeypatch, 2, OSError("connection reset"))
    digest = written(ParameterStore(tmp_path, archive).of(1), b"weights")
    assert pauses == [1.0, 2.0]
    assert archive.names("job-1") == [f"{digest}.safetensors"]


def test_an_archive_that_goes_on_failing_says_so_without_its_login(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    archive, pauses = unwell(monkeypatch, 99, OSError("odd://me:secret@there/x does not answer"))
    with pytest.raises(ServiceError, match="could not be kept in odd://there/x") as raised:
        written(ParameterStore(tmp_path, archive).of(1), b"weights")
    assert "does not answer" in raised.value.message
    assert "secret" not in raised.value.message
    assert pauses == [1.0, 2.0, 4.0]


def test_what_is_being_deployed_stays_though_its_job_needs_it_no_more(store: ParameterStore):
    parameters, other = store.of(1), store.of(2)
    kept, pinned, unneeded = (written(parameters, weights) for weights in (b"a", b"b", b"c"))
    written(other, b"b")
    with parameters.pins() as pins:
        pins.add(pinned)
        assert store.of(1).collect([kept]) == 1
        assert parameters.at_hand(pinned).read_bytes() == b"b"
        assert other.collect([]) == 1, "another job's"
    with pytest.raises(ServiceError, match="no longer in"):
        parameters.at_hand(unneeded)
    assert parameters.collect([kept]) == 1
    assert parameters.at_hand(kept).exists()


def test_an_archive_that_refuses_is_not_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    archive, pauses = unwell(monkeypatch, 99, PermissionError("AccessDenied"))
    with pytest.raises(ServiceError, match="AccessDenied"):
        written(ParameterStore(tmp_path, archive).of(1), b"weights")
    assert pauses == []


@pytest.mark.parametrize("url", ["nowhere://me:secret@bucket/x", "wrong-protocol://x"])
def test_a_url_that_no_filesystem_is_for_ends_the_start_with_a_sentence(url: str, tmp_path: Path):
    with pytest.raises(ArchiveUnknown, match="cannot be used"):
        Archive(url)
    with pytest.raises(StartError, match=r"--parameters-url: .* cannot be used") as raised:
        open_storage(Settings(home=tmp_path, parameters_url=url))
    assert "secret" not in str(raised.value)
