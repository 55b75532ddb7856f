"""What several suites share: a private database cluster, the engines by name, and the run's processes."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests put other objects in the place of parts of what decides: here its sources serve, and
# in servers what was compiled. Before anything imports `server`.
with pytest.MonkeyPatch.context() as _patch:
    _patch.setenv("ML_UDF_CORE", os.environ.get("ML_UDF_CORE", "python"))
    import server as _  # noqa: F401

from ml_udf.cli import pg_extension
from ml_udf.cli.pg_module import MODULE, build_module
from ml_udf.cli.pg_sandbox import Sandbox
from ml_udf.cli.pg_server import PostgresServer, SetupError
from server.extensions import ANSWERS, FRONT, Extension, NotBuilt, build, is_current
from tests.callback_errors import expected_callback_errors, no_callback_errors
from tests.inference_server import InferenceServer
from tests.server_forks import ServerForks
from tests.side_by_side import (
    locked,
    pytest_collection,
    pytest_collection_finish,
    pytest_configure_node,
    pytest_runtest_protocol,
    pytest_sessionstart,
    pytest_xdist_make_scheduler,
    shared_folder,
)

__all__ = [
    "expected_callback_errors",
    "no_callback_errors",
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_configure_node",
    "pytest_runtest_protocol",
    "pytest_sessionstart",
    "pytest_xdist_make_scheduler",
    "shared_folder",
]


def pytest_configure() -> None:
    """A shell starts background jobs with Ctrl-C ignored, and every process below would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which PostgreSQL was tested, and loudly where none was."""
    try:
        server = PostgresServer.find()
    except SetupError as error:
        terminalreporter.write_line(f"PostgreSQL: NOT TESTED, {error.message}", red=True)
        return
    if server.plpython() is None:
        terminalreporter.write_line(f"PostgreSQL {server.version}: NOT TESTED, no plpython3u", red=True)
    else:
        terminalreporter.write_line(f"PostgreSQL {server.version} ({server.bin_dir})")


@pytest.fixture(scope="session", autouse=True)
def batching_module_built_once(shared_folder: Path) -> Iterator[None]:
    """Every private cluster installs the batching module; to compile it takes longer than all the rest."""

    def build(server: PostgresServer, source: Path, build_dir: Path) -> Path:
        key = hashlib.sha256(f"{server.pg_config} {source}".encode()).hexdigest()
        built = shared_folder / f"{key}.so"
        with locked(shared_folder / f"{key}.lock"):
            if not built.exists():
                half = shutil.copy(build_module(server, source, build_dir), built.with_suffix(".half"))
                Path(half).rename(built)
        return Path(shutil.copy(built, build_dir / f"{MODULE}.so"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pg_extension, "build_module", build)
        yield


@pytest.fixture(scope="session", autouse=True)
def servers_forked() -> Iterator[None]:
    """Servers of tests begin with their imports done."""
    InferenceServer.forks = forks = ServerForks()
    yield
    InferenceServer.forks = None
    forks.close()


@pytest.fixture(scope="session")
def native_front(shared_folder: Path) -> None:
    """The native front's module, of the sources that are here."""
    _built(shared_folder, FRONT)


@pytest.fixture(scope="session")
def native_store(shared_folder: Path) -> None:
    """The module of the native store of kept answers, of the sources that are here."""
    _built(shared_folder, ANSWERS)


def _built(folder: Path, extension: Extension) -> None:
    """Without a compiler its tests are left out."""
    with locked(folder / f"{extension.name}.lock"):
        try:
            if not is_current(extension):
                build(extension)
        except NotBuilt as error:
            pytest.skip(f"{extension.title} is left out: {error}")


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
