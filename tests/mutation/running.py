"""Runs tests against one mutant in a child of this process, which has the heavy libraries loaded already.

The child imports our modules itself, the mutated one from the mutant's source. It is ended, with everything
that it started, when it is over or has taken too long.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

__all__ = ["Outcome", "Run", "preload"]

Outcome = Literal["killed", "timeout", "survived"]

_HEAVY = (
    "numpy",
    "torch",
    "pyarrow",
    "fastapi",
    "uvicorn",
    "sqlalchemy",
    "optuna",
    "hypothesis",
    "pytest",
    "httpx",
)


def preload() -> None:
    """Import what every child would import again, and nothing of ours."""
    for name in _HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    ours = [name for name in sys.modules if name.partition(".")[0] in ("server", "gpu_worker", "ml_udf")]
    assert not ours, ours


@dataclass(slots=True)
class Run:
    """A child that runs `tests` on the module `name` made of `source`."""

    name: str
    source: str
    tests: Sequence[str]
    timeout_s: float
    pid: int = 0
    began_s: float = 0.0

    def start(self) -> None:
        """Fork the child."""
        self.began_s = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                os.setpgid(0, 0)
                code = _child(self.name, self.source, self.tests)
            finally:
                os._exit(code)

    def poll(self) -> Outcome | None:
        """How it ended, once it has; one that takes too long is ended."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self._end()
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        if time.monotonic() - self.began_s < self.timeout_s:
            return None
        self._end()
        os.waitpid(self.pid, 0)
        return "timeout"

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def _child(name: str, source: str, tests: Sequence[str]) -> int:
    import pytest

    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    sys.meta_path.insert(0, _Mutated(name, source))
    return int(
        pytest.main(
            [*tests, "-x", "-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--hypothesis-seed=0"]
        )
    )


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module, and gives it another source than its file's."""

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._source = source

    def find_spec(
        self, fullname: str, path: object, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The mutated module's spec, with its file's own path."""
        if fullname != self._name:
            return None
        file = os.path.join(os.getcwd(), *fullname.split(".")) + ".py"
        return importlib.util.spec_from_file_location(fullname, file, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        """Run the mutant in the module's place."""
        exec(compile(self._source, str(module.__file__), "exec"), module.__dict__)
