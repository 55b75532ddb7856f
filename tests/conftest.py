"""What several suites share: a private database cluster, and the engines by name."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_udf.cli import pg_extension
from ml_udf.cli.pg_module import MODULE, build_module
from ml_udf.cli.pg_sandbox import Sandbox
from ml_udf.cli.pg_server import PostgresServer, SetupError
from tests.callback_errors import expected_callback_errors, no_callback_errors

__all__ = ["expected_callback_errors", "no_callback_errors"]


def pytest_configure() -> None:
    """A shell starts background jobs with Ctrl-C ignored, and every process below would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def batching_module_built_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every private cluster installs the batching module; to compile it takes longer than all the rest."""
    folder = tmp_path_factory.mktemp("module")
    built: dict[tuple[Path, Path], Path] = {}

    def build(server: PostgresServer, source: Path, build_dir: Path) -> Path:
        key = (server.pg_config, source)
        if key not in built:
            fresh = build_module(server, source, build_dir)
            built[key] = Path(shutil.copy(fresh, folder / f"{len(built)}.so"))
        return Path(shutil.copy(built[key], build_dir / f"{MODULE}.so"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pg_extension, "build_module", build)
        yield


@pytest.fixture(scope="session")
def cluster() -> Iterator[Sandbox]:
    try:
        running = Sandbox.start(PostgresServer.find(), batching=None)
    except SetupError as error:
        pytest.skip(f"PostgreSQL's part is left out: {error}")
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def open_folder() -> Iterator[Path]:
    """A folder that every user of the machine can enter, the database's too; pytest's own are closed."""
    folder = Path(tempfile.mkdtemp(prefix="ml_udf-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=["duckdb", "postgres", "postgres-by-row"])
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)
