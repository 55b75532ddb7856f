"""What the extension puts beside PostgreSQL is whole: what a module of it imports of ours is there too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ml_udf.cli import pg_extension

_PACKAGES = ("ml_udf", "gpu_worker", "server")


def test_every_module_that_an_installed_one_imports_is_installed() -> None:
    installed: dict[str, Path] = {}
    for package in _PACKAGES:
        for source, relative in pg_extension._files(package):
            parts = (package, *relative.with_suffix("").parts)
            installed[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = source
    assert "server.ensemble.combine" in installed
    assert "server.app" not in installed, "the server itself is not"
    missing = {
        f"{name} imports {wanted}"
        for name, source in installed.items()
        for wanted in _imported(ast.parse(source.read_text()))
        if wanted.partition(".")[0] in _PACKAGES and wanted not in installed
    }
    assert not missing


def _imported(tree: ast.Module) -> Iterator[str]:
    """The modules that it imports when it is imported, or when one of its functions runs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
