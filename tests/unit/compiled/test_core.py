"""The compiled core: it serves where it is of these sources, says why where not, and decides as they do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from server.compiled import finder
from server.compiled.finder import ChosenCore, CoreMissing, choose_core
from server.compiled.modules import COMPILED, MANIFEST, ROOT, digests, folder, source_of


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of what was compiled."""
    monkeypatch.setattr(finder, "folder", lambda: tmp_path)
    return tmp_path


def manifest(**fields: Any) -> str:
    return json.dumps({"mypy": version("mypy"), "compiled": list(COMPILED), "sources": digests()} | fields)


def test_one_of_these_sources_serves(made: Path) -> None:
    (made / MANIFEST).write_text(manifest())
    assert choose_core("auto") == ChosenCore("compiled", "it is built here")
    assert choose_core("compiled").name == "compiled"
    assert choose_core("python") == ChosenCore("python", "ML_UDF_CORE=python asks for it")


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (None, "is not built here"),
        ("{", "has a manifest that cannot be read"),
        ("{}", "has a manifest that cannot be read"),
        ("[]", "has a manifest that cannot be read"),
        (manifest(sources={**digests(), COMPILED[0]: "-"}), "was made of other sources"),
        (manifest(compiled=list(COMPILED[1:])), "was made of other sources"),
    ],
)
def test_one_that_is_not_of_these_sources_is_left_aside_and_how_to_compile_it_is_said(
    made: Path, told: str | None, why: str
) -> None:
    if told is not None:
        (made / MANIFEST).write_text(told)
    chosen = choose_core("auto")
    assert chosen.name == "python"
    assert why in chosen.why
    assert "python -m server.compiled.build" in chosen.why
    with pytest.raises(CoreMissing, match=why):
        choose_core("compiled")


def test_another_word_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(CoreMissing, match="ML_UDF_CORE=fast is none of auto, compiled, python"):
        choose_core("fast")


def test_it_is_known_by_every_source_of_the_scheduler() -> None:
    known = set(digests())
    for package in ("placement", "placement/policies", "scheduling", "scheduling/policies"):
        for file in (ROOT / "server" / package).glob("*.py"):
            module = f"server.{package.replace('/', '.')}.{file.stem}"
            assert file.stem == "__init__" or module in known
    assert all(source_of(module).is_file() for module in known)


def test_compiled_or_not_it_decides_the_same_to_the_last_digit() -> None:
    needs_compiled()
    compiled, python = decided("compiled"), decided("python")
    assert (compiled["core"], python["core"]) == ("compiled", "python")
    assert compiled["decided"] == python["decided"]
    assert len(set(python["decided"].values())) == len(python["decided"])


def test_all_that_is_promised_of_placement_holds_where_it_is_compiled() -> None:
    needs_compiled()
    benchmarks = ROOT.glob("tests/unit/placement/test_*_benchmark.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/placement"]
        + [f"--ignore={each.relative_to(ROOT)}" for each in benchmarks],
        cwd=ROOT,
        env={**os.environ, "ML_UDF_CORE": "compiled"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


def needs_compiled() -> None:
    if not (folder() / MANIFEST).exists():
        pytest.skip("the core is not compiled here: it needs a C compiler")


def decided(core: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.compiled.decided"],
        cwd=ROOT,
        env={**os.environ, "ML_UDF_CORE": core},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("program", ["server", "ml_udf.cli"])
def test_who_starts_a_server_with_an_unknown_core_reads_one_line(program: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", program],
        env={**os.environ, "ML_UDF_CORE": "fast"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert found.stderr == "ml_udf: ML_UDF_CORE=fast is none of auto, compiled, python\n"
