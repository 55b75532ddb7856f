"""Promises about the project itself: light imports, true documents."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from ml_udf import errors
from ml_udf.cli.app import app
from ml_udf.config import SETTINGS, Options

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def modules_after(statement: str) -> set[str]:
    code = f"{statement}; import sys, json; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def test_importing_ml_udf_pulls_in_the_standard_library_alone():
    loaded = modules_after("import ml_udf, ml_udf.client, ml_udf.client.statement")
    assert not loaded & {"torch", "numpy", "pyarrow", "duckdb", "typer", "rich", "gpu_worker", "server"}


def test_libraries_whose_insides_are_used_have_an_upper_bound():
    """Classes of theirs are subclassed: another release may rename what is overridden."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [text for group in project["optional-dependencies"].values() for text in group]
    for library in ("uvicorn", "optuna", "pytest-xdist"):
        found = [text for text in named if re.match(rf"{library}\b", text)]
        assert found
        assert all(re.search("<|==", text) for text in found), found


def test_importing_the_server_never_imports_torch():
    assert "torch" not in modules_after("import server.app, server.__main__")


def test_a_worker_starts_without_torch():
    assert "torch" not in modules_after("import gpu_worker.__main__")


def test_importing_the_worker_imports_no_http_and_no_database():
    assert not modules_after("import gpu_worker.loop") & {"fastapi", "starlette", "sqlalchemy", "uvicorn"}


def concrete_errors() -> list[type[errors.MlUdfError]]:
    return [leaf for leaf in errors.error_classes() if leaf not in (errors.MlUdfError, errors.InputError)]


@pytest.mark.parametrize("error", concrete_errors(), ids=lambda error: error.__name__)
def test_every_error_stands_in_its_document_with_its_sqlstate(error):
    document = (ROOT / "docs" / "errors.md").read_text()
    rows = [line for line in document.splitlines() if line.startswith(f"| {error.sqlstate} ")]
    assert any(f"`{error.code}`" in row for row in rows)


def test_every_error_says_what_to_do_in_words_of_its_own():
    hints = [error.usual_hint for error in concrete_errors() if error is not errors.ServerFault]
    assert all(hints)
    assert len(set(hints)) == len(hints)


@pytest.mark.parametrize("error", concrete_errors(), ids=lambda error: error.__name__)
def test_every_wire_code_makes_its_own_error_again(error):
    assert type(errors.error_from_code(error.code, "text")) is error


def test_every_setting_stands_in_the_documents_table_and_has_an_option():
    text = (ROOT / "docs" / "using.md").read_text()
    rows = [
        line for line in text.partition("## Settings of a session")[2].splitlines() if line.startswith("|")
    ]
    for setting in SETTINGS:
        assert any(f"`{setting.name}`" in row for row in rows)
        assert hasattr(Options(), setting.name)


def anchors_of(document: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_links_in_the_documents_lead_somewhere() -> None:
    astray: list[str] = []
    for document in documents_with_paths():
        for target, anchor in re.findall(r"\]\(([^):#\s]*)(?:#([\w-]+))?\)", document.read_text()):
            file = document.parent / target if target else document
            if not file.exists() or (anchor and anchor not in anchors_of(file)):
                astray.append(f"{document.relative_to(ROOT)}: {target}#{anchor}")
    assert astray == []


def test_the_readme_leads_to_every_document() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)", README))
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= linked


PACKAGES = ("ml_udf", "server", "gpu_worker", "migrations", "examples", "tests")
# Run by pytest, Alembic, `python -m` on a package, or in the environment of a server that is not ours.
STARTED = re.compile(
    r"(^|\.)(__main__|conftest|test_\w+)$|^migrations\.(env$|versions\.)"
    r"|^tests\.e2e\.mlserver_upper\.|^tests\.benchmarks\.serving\.servers\.\w+_server$"
)


def module_name(file: Path) -> str:
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def test_no_file_is_there_that_nothing_imports_and_nobody_starts() -> None:
    """A module is imported somewhere, or another file says its name to start it."""
    files = {module_name(file): file for package in PACKAGES for file in (ROOT / package).rglob("*.py")}
    texts = {name: file.read_text() for name, file in files.items()}
    imported = set().union(*(imports_in(text) - {name} for name, text in texts.items()))
    starting = (ROOT / "Makefile", *(ROOT / "sql").rglob("*.sql*"), *(ROOT / "sql").rglob("Makefile"))
    others = [file.read_text() for file in starting]

    def is_said(name: str, stem: str) -> bool:
        word = re.compile(rf"\b{stem}\b")
        if any(word.search(text) for text in others):
            return True
        saying = (text for other, text in texts.items() if other != name and word.search(text))
        return any(word.search(said) for text in saying for said in literals_in(text))

    orphans = [
        name
        for name, file in files.items()
        if file.name != "__init__.py"
        and name not in imported
        and not STARTED.search(name)
        and not is_said(name, file.stem)
    ]
    assert orphans == []


IMPORT = re.compile(r"^[ \t]*import[ \t]+([^\n#]+)", re.MULTILINE)
FROM = re.compile(r"^[ \t]*from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]+)", re.MULTILINE)


def imports_in(text: str) -> set[str]:
    """Modules, and what is named of them: by their look, in strings too. To parse all files takes seconds."""
    found = {name.split()[0] for names in IMPORT.findall(text) for name in names.split(",")}
    for module, names in FROM.findall(text):
        told = re.sub(r"#[^\n]*", "", names).strip("() \t\n,")
        found |= {module, *(f"{module}.{name.split()[0]}" for name in told.split(",") if name.strip())}
    return found


def literals_in(text: str) -> list[str]:
    """The strings of a module."""
    constants = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return [node.value for node in constants if isinstance(node.value, str)]


# Folders that a run makes; no clone holds them.
MADE_BY_RUNS = {".demo", "bench-results", "functions", "latencies", "models"}
NAMED_PATH = re.compile(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:py|md|toml|sql|c|h))`")


def test_every_path_that_the_documents_name_is_there() -> None:
    """From the project's root, from the document's own folder, or the end of a path."""
    tops = {path.name for path in folders()}
    places = [place.relative_to(ROOT).parts for top in tops for place in (ROOT / top).rglob("*")]
    known = {"/".join(parts[start:]) for parts in places for start in range(len(parts))} | tops
    missing: list[str] = []
    for document in documents_with_paths():
        for named in NAMED_PATH.findall(document.read_text()):
            path = named.rstrip("/")
            is_ours = "/" not in path or path.partition("/")[0] in tops
            if is_ours and path not in known | MADE_BY_RUNS and not (ROOT / path).exists():
                missing.append(f"{document.relative_to(ROOT)}: {named}")
    assert missing == []


def folders() -> list[Path]:
    """The project's own, at the top."""
    hidden_or_made = MADE_BY_RUNS | {path.name for path in ROOT.glob(".*")}
    return [path for path in sorted(ROOT.iterdir()) if path.is_dir() and path.name not in hidden_or_made]


def documents_with_paths() -> list[Path]:
    """README.md, docs/ and the page of each folder."""
    pages = [page for top in folders() if top.name != "docs" for page in sorted(top.rglob("README.md"))]
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *pages]


def documents() -> str:
    return "\n".join(path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))))


def test_every_command_that_the_documents_name_is_there_and_every_command_is_named():
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    named = set(re.findall(r"ml-udf ([a-z]+(?:-[a-z]+)*)", documents()))
    assert named == set(command.commands)


def test_every_make_target_that_the_documents_name_is_there():
    named = set(re.findall(r"(?:`|^)make ([a-z][a-z-]*)", documents(), re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named
    assert not named - targets
