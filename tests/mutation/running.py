"""Runs tests against mutants, each in a child of a process that has the tests loaded.

    here ─fork─→ our modules and the tests, imported once ─fork─→ one mutant's functions, its tests
      └──fork─→ one mutant that shows when its module is imported: our modules anew, its tests

A mutant within a function is put into the function itself: whoever holds it, by whatever name, runs the
mutant. A child is ended, with everything that it started, when it is over or has taken too long; a loop
without an end by what it computes, so that a busy machine kills no mutant. A failed test kills a mutant only
if it passes without one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Literal

import hypothesis
import pytest

from tests.mutation.mutants import Mutant

__all__ = ["Case", "Outcome", "outcomes"]

Outcome = Literal["killed", "timeout", "survived"]

_HEAVY = ("numpy", "torch", "pyarrow", "fastapi", "uvicorn", "sqlalchemy", "optuna", "duckdb", "httpx")
_OPTIONS = ("-x", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--hypothesis-seed=0")
_PASSED, _FAILED, _NOT_TRIED = 0, 1, 66  # how a child ends
_CPU_S, _CPU_TIMES = 10, 2  # a child may compute so long, and so many times what its tests took
_WAIT_S, _WAIT_TIMES = 60, 20  # and be there so long, on a machine that does much else


@dataclass(frozen=True, slots=True)
class Case:
    """One mutant of one module, and the tests that may kill it, which take `seconds` in all."""

    module: str
    mutant: Mutant
    tests: tuple[str, ...]
    seconds: float


# In the child: runs these tests, against the case's mutant or without one; the test that failed, "" if none
# was begun, None if all passed.
Attempt = Callable[[Case, Sequence[str], bool], str | None]


def outcomes(cases: Sequence[Case], jobs: int) -> list[Outcome]:
    """What became of each, in their order; `jobs` at a time. One that no test runs survives.

    Raises RuntimeError if the tests cannot be collected, or are not those that the cases name.
    """
    ours = {case.module.partition(".")[0] for case in cases}
    assert ours.isdisjoint(name.partition(".")[0] for name in sys.modules), ours
    tested = {index: case for index, case in enumerate(cases) if case.tests}
    hypothesis.settings.register_profile("mutation", database=None)  # no child hears of another's examples
    hypothesis.settings.load_profile("mutation")
    found, heavy = _with_tests_loaded(tested, jobs) if tested else ({}, [])
    for name in heavy:
        importlib.import_module(name)
    anew = {index: case for index, case in tested.items() if index not in found}
    found |= _Children(anew, jobs, _attempt_anew).outcomes()
    return [found.get(index, "survived") for index in range(len(cases))]


def _with_tests_loaded(cases: Mapping[int, Case], jobs: int) -> tuple[dict[int, Outcome], list[str]]:
    """What became of the mutants within functions; which heavy libraries the tests import."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "told.json")
        pid = os.fork()
        if pid == 0:
            code = _FAILED
            try:
                _collect_and_run(cases, jobs, told)
                code = _PASSED
            finally:
                os._exit(code)
        os.waitpid(pid, 0)
        if not told.exists():
            raise RuntimeError("the tests could not be run with their modules loaded; see above")
        found, heavy = json.loads(told.read_text())
    return {int(index): outcome for index, outcome in found.items()}, heavy


def _collect_and_run(cases: Mapping[int, Case], jobs: int, told: Path) -> None:
    for case in cases.values():
        importlib.import_module(case.module)
    files = sorted({test.partition("::")[0] for case in cases.values() for test in case.tests})
    loop = _Loop(cases, jobs)
    pytest.main([*files, *_OPTIONS, "--disable-warnings"], plugins=[loop])
    if loop.found is not None:
        told.write_text(json.dumps((loop.found, [name for name in _HEAVY if name in sys.modules])))


class _Loop:
    """In place of pytest's own loop over the tests: one over the mutants. `found`: once it is over."""

    def __init__(self, cases: Mapping[int, Case], jobs: int) -> None:
        self._cases = cases
        self._jobs = jobs
        self._items: dict[str, pytest.Item] = {}
        self._live: dict[str, _Live] = {}
        self.found: dict[int, Outcome] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("tests cannot be collected")
        self._items = {item.nodeid: item for item in session.items}
        for case in self._cases.values():
            for test in case.tests:
                if test not in self._items:
                    raise session.Interrupted(f"there is no such test; measure reach anew: {test}")
        self._live = _live_of({case.module for case in self._cases.values()})
        gc.collect()
        gc.freeze()  # children write to no page for the collector's sake
        within = {index: case for index, case in self._cases.items() if not case.mutant.at_import}
        self.found = _Children(within, self._jobs, self._attempt).outcomes()
        return True

    def _attempt(self, case: Case, tests: Sequence[str], mutated: bool) -> str | None:
        if mutated:
            self._live[case.module].put(case.mutant)
        items = [self._items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                return item.nodeid
        return None


@dataclass(slots=True)
class _Live:
    """A module as it was imported: its code by name, and all functions that there are of it."""

    file: str
    codes: dict[str, list[CodeType]]
    functions: list[FunctionType] = field(default_factory=list)

    def put(self, mutant: Mutant) -> None:
        """Put a mutant into the functions that hold its scope. Raises LookupError if none does."""
        after = _codes_by_name(compile(mutant.source, self.file, "exec"))
        pairs: dict[tuple[str, int], CodeType] = {}
        for name, codes in self.codes.items():
            # A name may be there twice: a property's two functions.
            for before, changed in zip(codes, after.get(name, []), strict=False):
                pairs[name, before.co_firstlineno] = changed
        done = 0
        for function in self.functions:
            name = function.__code__.co_qualname
            holds = f"{mutant.scope}.".startswith(name.replace(".<locals>", "") + ".")
            code = pairs.get((name, function.__code__.co_firstlineno)) if holds else None
            if code is not None:
                if code.co_freevars != function.__code__.co_freevars:
                    raise LookupError(name)  # it wants other variables of the function around it
                function.__code__ = code
                done += 1
        if not done:
            raise LookupError(mutant.scope)


def _live_of(modules: Collection[str]) -> dict[str, _Live]:
    found: dict[str, _Live] = {}
    for name in modules:
        file = str(sys.modules[name].__file__)
        found[name] = _Live(file, _codes_by_name(compile(Path(file).read_bytes(), file, "exec")))
    by_file = {live.file: live for live in found.values()}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename in by_file:
            by_file[each.__code__.co_filename].functions.append(each)
    return found


def _codes_by_name(code: CodeType) -> dict[str, list[CodeType]]:
    found: dict[str, list[CodeType]] = {}
    for each in _codes_in(code):
        found.setdefault(each.co_qualname, []).append(each)
    return found


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes_in(constant)


def _attempt_anew(case: Case, tests: Sequence[str], mutated: bool) -> str | None:
    first = _FirstFailed()
    if mutated:
        sys.meta_path.insert(0, _Mutated(case.module, case.mutant.source))
    code = pytest.main([*tests, *_OPTIONS], plugins=[first])
    return None if code == 0 else first.test


class _FirstFailed:
    def __init__(self) -> None:
        self.test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.test:
            self.test = report.nodeid


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


@dataclass(slots=True)
class _Child:
    """One attempt. `control`: the one test that it runs without the mutant."""

    index: int
    control: str | None
    pid: int
    reader: int
    folder: str
    until_s: float

    def poll(self) -> tuple[int | None, str] | None:
        """Its exit status and the test that it names, once it is over; None for a status: out of time."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid and time.monotonic() < self.until_s:
            return None
        self.end(reap=not pid)
        named = b""
        with contextlib.suppress(BlockingIOError):
            named = os.read(self.reader, 4096)
        os.close(self.reader)
        shutil.rmtree(self.folder, ignore_errors=True)
        return os.waitstatus_to_exitcode(status) if pid else None, named.decode()

    def end(self, *, reap: bool = True) -> None:
        """End it, and what it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if reap:
            os.waitpid(self.pid, 0)


class _Children:
    """Attempts on cases, some at a time; a case whose mutant could not be tried gets no outcome."""

    def __init__(self, cases: Mapping[int, Case], jobs: int, attempt: Attempt) -> None:
        self._cases = cases
        self._jobs = jobs
        self._attempt = attempt
        self._waiting: deque[tuple[int, str | None]] = deque((index, None) for index in cases)
        self._sound: dict[str, bool] = {}  # by test: whether it passes without a mutant
        self._found: dict[int, Outcome] = {}

    def outcomes(self) -> dict[int, Outcome]:
        """Of each by its number."""
        running: list[_Child] = []
        try:
            while self._waiting or running:
                while self._waiting and len(running) < self._jobs:
                    running.append(self._start(*self._waiting.popleft()))
                for child in running[:]:
                    if (ended := child.poll()) is not None:
                        running.remove(child)
                        self._note(child, *ended)
                time.sleep(0.002)
        finally:
            for child in running:
                child.end()
        return self._found

    def _start(self, index: int, control: str | None) -> _Child:
        case = self._cases[index]
        tests = [test for test in case.tests if self._sound.get(test, True)] if control is None else [control]
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        folder = tempfile.mkdtemp(prefix="mutant-")
        until_s = time.monotonic() + _WAIT_S + _WAIT_TIMES * case.seconds
        cpu_s = math.ceil(_CPU_S + _CPU_TIMES * case.seconds)
        pid = os.fork()
        if pid == 0:
            code = _NOT_TRIED
            try:
                os.setpgid(0, 0)
                resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
                os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
                null = os.open(os.devnull, os.O_RDWR)
                for descriptor in (0, 1, 2):
                    os.dup2(null, descriptor)
                failed = self._attempt(case, tests, control is None) if tests else None
                os.write(writer, (failed or "").encode()[:4096])
                code = _PASSED if failed is None else _FAILED
            finally:
                os._exit(code)
        os.close(writer)
        return _Child(index, control, pid, reader, folder, until_s)

    def _note(self, child: _Child, status: int | None, named: str) -> None:
        index = child.index
        if child.control is not None:
            known = child.control in self._sound
            if not self._sound.setdefault(child.control, status == _PASSED) and not known:
                print(f"fails without a mutant, left out: {child.control}", file=sys.stderr, flush=True)
            self._judge(index, child.control)
        elif status in (None, -signal.SIGXCPU, -signal.SIGKILL):
            self._end(index, "timeout")
        elif status == _PASSED:
            self._end(index, "survived")
        elif status != _NOT_TRIED:
            self._judge(index, named)

    def _judge(self, index: int, failed: str) -> None:
        """A test of the case failed: that counts if it passes without the mutant."""
        if not failed or self._sound.get(failed, False):
            self._end(index, "killed")
        elif failed not in self._sound:
            self._waiting.appendleft((index, failed))
        else:
            self._waiting.appendleft((index, None))

    def _end(self, index: int, outcome: Outcome) -> None:
        self._found[index] = outcome
        if outcome != "killed":
            print(f"  {outcome}: {self._cases[index].module}: {self._cases[index].mutant.name}", flush=True)
        if len(self._found) % 20 == 0:
            print(f"  {len(self._found)} done", flush=True)
