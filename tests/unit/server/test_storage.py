"""What is opened before anything else: the home folder and the registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.settings import Settings
from server.storage import open_storage


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
