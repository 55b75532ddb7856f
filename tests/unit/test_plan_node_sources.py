"""The plan node's C sources: what each folder may know, and what is said of each exported function."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

BATCH = Path(__file__).parents[2] / "sql/postgres/batch"
HEADERS = {"": "ml_udf_batch.h", "plan": "plan/plan.h", "exec": "exec/exec.h"}
EXTERN = re.compile(r"^extern [\w \t]+?\*?(batch_\w+)\(", re.MULTILINE)


def sources(folder: str) -> list[Path]:
    return sorted((BATCH / folder).glob("*.c"))


def exported() -> list[str]:
    return [name for header in HEADERS.values() for name in EXTERN.findall((BATCH / header).read_text())]


def test_the_folders_know_each_other_by_the_shared_header_alone() -> None:
    for folder, foreign in (("plan", "exec.h"), ("exec", "plan.h")):
        for source in sources(folder):
            assert not re.search(rf'#include ".*{foreign}"', source.read_text()), source


def test_the_makefile_builds_every_source() -> None:
    makefile = (BATCH / "Makefile").read_text().replace("\\\n", " ")
    for folder in ("plan", "exec"):
        (listed,) = re.findall(rf"^{folder.upper()} = (.*)$", makefile, re.MULTILINE)
        assert sorted(listed.split()) == [source.stem for source in sources(folder)]


@pytest.mark.parametrize("folder", ["plan", "exec"])
def test_a_folders_header_lists_its_files(folder: str) -> None:
    head = (BATCH / HEADERS[folder]).read_text().partition("*/")[0]
    assert sorted(re.findall(r"\w+\.c", head)) == sorted(source.name for source in sources(folder))


def test_every_exported_function_is_defined_once_under_a_comment_that_says_what_it_does() -> None:
    files = [*sources(""), *sources("plan"), *sources("exec")]
    texts = {source: source.read_text() for source in files}
    assert len(exported()) > 60
    for name in exported():
        found = [
            (source, text[: match.start()])
            for source, text in texts.items()
            for match in re.finditer(rf"^\w[\w ]*\*?\n{name}\(", text, re.MULTILINE)
        ]
        assert len(found) == 1, name
        ((source, before),) = found
        assert before.endswith("*/\n"), f"{source.name}: {name}"


def test_every_file_says_its_name() -> None:
    for path in BATCH.rglob("*.[ch]"):
        assert path.read_text().splitlines()[2] == f" * {path.name}", path
