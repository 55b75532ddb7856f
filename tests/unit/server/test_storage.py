"""What is opened before anything else: the home folder and the registry."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.settings import Settings
from server.storage import StartError, open_storage


@pytest.mark.parametrize("damage", ["emptied", "removed"])
def test_a_registry_that_was_lost_beside_a_home_that_was_used_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    settings = Settings(home=tmp_path / "home")
    open_storage(settings).engine.dispose()
    assert "the registry is new" not in caplog.text, "as everything is at the first start"
    (settings.home / "functions" / "udf_f.json").write_text("{}")
    (settings.home / "training" / "studies").mkdir(parents=True)
    (settings.home / "training" / "studies" / "job-1.journal").write_text("")
    open_storage(settings).engine.dispose()
    assert "the registry is new" not in caplog.text
    for path in settings.home.glob("registry.db*"):
        path.unlink() if damage == "removed" else path.write_bytes(b"")
    open_storage(settings).engine.dispose()
    assert "the registry is new, and the home holds what another knew" in caplog.text
    assert "left=functions, training/studies" in caplog.text


@pytest.mark.parametrize("damage", ["cut off", "no database"])
def test_a_damaged_registry_is_told_with_what_to_do_and_left_as_it_is(tmp_path: Path, damage: str) -> None:
    settings = Settings(home=tmp_path / "home")
    open_storage(settings).engine.dispose()
    registry = settings.home / "registry.db"
    registry.write_bytes(registry.read_bytes()[:-4096] if damage == "cut off" else b"no database" * 1000)
    before = registry.read_bytes()
    with pytest.raises(
        StartError, match="it is damaged: move it away with its -wal and -shm, and put a copy"
    ):
        open_storage(settings)
    assert registry.read_bytes() == before


def test_a_disk_that_is_full_when_the_registry_is_opened_is_called_full(small_disk: Path) -> None:
    settings = Settings(home=small_disk / "home")
    open_storage(settings).engine.dispose()
    with contextlib.suppress(OSError), (small_disk / "ballast").open("ab", buffering=0) as ballast:
        while True:
            ballast.write(bytes(512))
    with pytest.raises(
        StartError, match=r"the registry \(.*\) cannot be opened: no space left for the registry"
    ):
        open_storage(settings)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no disk of its own can be mounted here (needs root)")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=False)
