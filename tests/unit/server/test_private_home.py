"""What the server writes is its owner's alone, whatever the umask was and whatever an earlier one left."""

from __future__ import annotations

import grp
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.settings import Settings
from server.storage import StartError, open_storage
from server.store.artifacts import Artifacts
from server.store.readers import Readers
from tests.unit.server.manifests import manifest

pytestmark = pytest.mark.security


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def others(home: Path) -> dict[str, str]:
    """What is in a home, itself included, that anybody but its owner has any right to."""
    found = {}
    for path in [home, *home.rglob("*")]:
        if not path.is_symlink() and mode(path) & 0o077:
            found[str(path.relative_to(home))] = oct(mode(path))
    return found


def filled(home: Path, readers: Readers | None = None) -> Artifacts:
    artifacts = Artifacts(home, 1 << 20, readers)
    artifacts.install(manifest("plain"), None)
    artifacts.install(manifest("net", weights="w"), io.BytesIO(b"weights"))
    artifacts.write_function("f", {"version": 1})
    return artifacts


def test_models_functions_and_the_registry_are_the_owners_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    storage = open_storage(Settings(home=home))
    storage.engine.dispose()
    filled(home)
    assert others(home) == {}


def test_what_an_earlier_server_left_open_is_closed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for folder in ("models", "functions", "training", "latencies"):
        (home / folder).mkdir(parents=True)
    (home / "registry.db").touch()
    open_storage(Settings(home=home)).engine.dispose()
    assert others(home) == {}


def test_a_group_reads_models_and_functions_and_nothing_else(tmp_path: Path) -> None:
    home = tmp_path / "home"
    group = os.getgid()
    (home / "training").mkdir(parents=True)
    storage = open_storage(Settings(home=home, home_group=grp.getgrgid(group).gr_name))
    storage.engine.dispose()
    _, place = storage.artifacts.install(manifest("net", weights="w"), io.BytesIO(b"weights"))
    storage.artifacts.write_function("f", {"version": 1})
    assert mode(home) == 0o710
    for folder in (home / "models", home / "functions", place.parent, place):
        assert mode(folder) == 0o750
    for file in (place / "w", place / "model.json", home / "functions/f.json"):
        assert mode(file) == 0o640
        assert file.stat().st_gid == group
    assert mode(home / "training") == 0o700
    assert mode(home / "registry.db") == 0o600


def test_a_group_that_is_named_later_reads_what_was_there_before(tmp_path: Path) -> None:
    home = tmp_path / "home"
    filled(home)
    outside = tmp_path / "elsewhere.json"
    outside.touch(0o604)
    (home / "functions/linked.json").symlink_to(outside)
    group = grp.getgrgid(os.getgid())
    open_storage(Settings(home=home, home_group=group.gr_name)).engine.dispose()
    assert mode(outside) == 0o604
    (home / "functions/linked.json").unlink()
    below = [path for folder in ("models", "functions") for path in (home / folder).rglob("*")]
    assert below
    assert {mode(path) for path in below} == {0o750, 0o640}
    assert {path.stat().st_gid for path in below} == {group.gr_gid}
    open_storage(Settings(home=home)).engine.dispose()
    assert others(home) == {}


def test_a_group_that_does_not_exist_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="--home-group"):
        open_storage(Settings(home=tmp_path, home_group="no-such-group"))
