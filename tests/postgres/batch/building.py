"""Builds the plan node from its source for the server under test, apart from any installation."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ml_udf.cli.pg_sandbox import Sandbox, sandbox
from ml_udf.cli.pg_server import PostgresServer
from tests.side_by_side import locked

__all__ = ["MODULE", "SOURCE", "batch_cluster", "build_module"]

SOURCE = Path(__file__).parents[3] / "sql/postgres/batch"
MODULE = "ml_udf_batch.so"


def build_module(server: PostgresServer) -> Path:
    """Compile the module, where it is not up to date, and return it; raises CalledProcessError with"
    " make's output."""
    directory = SOURCE.parents[2] / ".build" / f"{Path(MODULE).stem}-{server.version}"
    directory.mkdir(parents=True, exist_ok=True)
    command = ["make", "-C", str(directory), "-f", str(SOURCE / "Makefile"), f"VPATH={SOURCE}"]
    command += [f"PG_CONFIG={server.pg_config}", "with_llvm=no", "-j2"]
    with locked(directory / ".lock"):
        subprocess.run(command, check=True, capture_output=True, text=True)
    return directory / MODULE


@contextlib.contextmanager
def batch_cluster(server: PostgresServer, **settings: str) -> Iterator[Sandbox]:
    """A private cluster whose sessions all load the module, by its absolute path."""
    with tempfile.TemporaryDirectory(prefix="ml_udf-so-") as folder:
        # The server's user must be able to read it; the repository may be closed to it.
        Path(folder).chmod(0o755)
        module = Path(shutil.copy(build_module(server), folder))
        module.chmod(0o755)
        settings = {"session_preload_libraries": str(module), **settings}
        with sandbox(server, extension=False, settings=settings) as cluster:
            yield cluster
