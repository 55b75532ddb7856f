"""The PostgreSQL extension as files: where they go, what is written into them, what must hold first.

Owns installing and removing. The extension's script needs to know where `ml_udf`'s Python is; that path is
written into it here, never a setting that a user could change. The server gets its own copy of the few
pure-Python packages it runs, readable by all and writable by the one who installed. Whoever can write what
the backend imports is its superuser, so every directory on the way to it has to belong to root, to the
server's user or to the one who installs, and nobody else may write to it.
"""

from __future__ import annotations

import compileall
import importlib.util
import json
import os
import pwd
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version as distribution_version
from pathlib import Path

from ml_udf.cli.pg_module import MODULE, build_module
from ml_udf.cli.pg_server import PostgresServer, SetupError

__all__ = ["ALLOWED_SERVERS", "Installed", "has_module", "hidden_from", "install", "sources", "uninstall"]

ALLOWED_SERVERS = "servers.allow"  # read by ml_udf.postgres.allowed
_ALLOWED_TEXT = """\
# Inference servers that CREATE SERVER may name, beside those that a superuser creates: one a line, as
#   host   host:port   *.domain
127.0.0.1:8080
localhost:8080
"""

MIN_PYTHON = (3, 11)
# What runs inside the server: standard library only, except for `local:` endpoints, which need the last two.
_PACKAGES = ("ml_udf", "gpu_worker", "server")
_LRU = ("__init__", "packing", "policies/__init__", "policies/demand", "policies/lru", "policy")
_ONLY = {
    "server": (
        *("__init__.py", "record.py", "policy_names.py", "ensemble/"),
        *(f"compiled/{name}.py" for name in ("__init__", "finder", "modules")),  # Python serves there
        *(f"placement/{name}.py" for name in _LRU),
    )
}
_NOT = {"ml_udf": {"cli", "duckdb", "_sql"}}
_LOCAL_NEEDS = ("torch", "numpy", "PIL", "safetensors")


@dataclass
class Installed:
    """What `install` did."""

    version: str
    extension_dir: Path
    python_dir: Path
    local_path: Path | None  # the site-packages that `local:` endpoints use
    module: Path | None  # the batching module
    notes: list[str] = field(default_factory=list)


def sources() -> Path:
    """The directory with `ml_udf.control` and the scripts, in a wheel or in a checkout."""
    here = Path(__file__).resolve().parents[1]
    for candidate in (here / "_sql" / "postgres", here.parent / "sql" / "postgres"):
        if (candidate / "ml_udf.control").exists():
            return candidate
    raise SetupError("the extension's SQL files are missing from this installation", "reinstall ml_udf")


def install(
    server: PostgresServer,
    *,
    root: Path = Path("/"),
    local: bool | None = None,
    batching: bool | None = None,
    server_user: str | None = None,
) -> Installed:
    """Copy the extension to where `server` finds it. Raises `SetupError`; then nothing was changed.

    root         a directory to install below, for a cluster that looks there (`finds_extensions_below`)
    local        whether `local:` endpoints shall work; None = if this Python's packages permit
    batching     whether to build and install the batching module; None = if headers and a compiler are there
    server_user  the operating-system user that the server runs as; None = postgres, where there is one
    """
    _check_plpython(server)
    version = default_version()
    extension_dir = _below(root, server.share_dir / "extension")
    python_dir = _below(root, server.share_dir / "ml_udf" / version)
    _check_writable(extension_dir)
    user = _server_user(server_user)
    if user and (hidden := _first_unreadable(_existing(python_dir), user)):
        raise SetupError(
            f"user {user.pw_name}, as which the server runs, cannot enter {hidden}",
            f"chmod o+x {hidden}, or name the server's user with --server-user",
        )
    if loose := _first_loose(_existing(python_dir), user):
        raise SetupError(
            f"the extension's Python would not be safe in {python_dir}: {loose}",
            "give it to root and let nobody else write to it, or install as its owner",
        )
    local_path, notes = _local_path(server, user, local)
    module = _install_module(server, _below(root, server.lib_dir), batching, notes)
    _install_packages(python_dir)
    paths = {"@PYTHON_PATH@": json.dumps(str(python_dir)), "@LOCAL_PATH@": json.dumps(str(local_path or ""))}
    for script in sorted(sources().glob("ml_udf--*.sql")):
        text = script.read_text()
        for placeholder, literal in paths.items():
            text = text.replace(placeholder, literal)
        _write(extension_dir / script.name, text)
    allowed = python_dir.parent / ALLOWED_SERVERS
    if not allowed.exists():  # afterwards it is the administrator's
        _write(allowed, _ALLOWED_TEXT)
    _write(extension_dir / "ml_udf.control", (sources() / "ml_udf.control").read_text())
    return Installed(version, extension_dir, python_dir, local_path, module, notes)


def has_module(server: PostgresServer, *, root: Path = Path("/")) -> bool:
    """Whether the batching module's file is there."""
    return (_below(root, server.lib_dir) / f"{MODULE}.so").exists()


def uninstall(server: PostgresServer, *, root: Path = Path("/")) -> list[Path]:
    """Remove every file of the extension; returns what was removed. Raises `SetupError`."""
    extension_dir = _below(root, server.share_dir / "extension")
    python_dir = _below(root, server.share_dir / "ml_udf")
    found = [*extension_dir.glob("ml_udf--*.sql"), *extension_dir.glob("ml_udf.control")]
    found += _below(root, server.lib_dir).glob(f"{MODULE}.so")
    if found or python_dir.exists():
        _check_writable(extension_dir)
    for path in found:
        path.unlink()
    if python_dir.exists():
        shutil.rmtree(python_dir)
        found.append(python_dir)
    return found


def default_version() -> str:
    """The extension version that `CREATE EXTENSION ml_udf` installs."""
    found = re.search(r"default_version\s*=\s*'([^']+)'", (sources() / "ml_udf.control").read_text())
    return found[1] if found else distribution_version("ml_udf")


# ── checks ─────────────────────────────────────────────────────────────────────────────────────────


def _check_plpython(server: PostgresServer) -> None:
    if server.plpython() is None:
        raise SetupError(
            f"PostgreSQL {server.version} in {server.bin_dir} has no PL/Python (plpython3u)",
            f"install it, such as apt-get install postgresql-plpython3-{server.major}",
        )
    linked = server.python_version()
    if linked is not None and linked < MIN_PYTHON:
        raise SetupError(
            f"PL/Python of PostgreSQL {server.version} is linked to Python {_dotted(linked)},"
            f" ml_udf needs {_dotted(MIN_PYTHON)} or newer",
            "use a PostgreSQL whose PL/Python is newer, or call the functions from DuckDB",
        )


def _check_writable(extension_dir: Path) -> None:
    existing = _existing(extension_dir)
    if not os.access(existing, os.W_OK):
        raise SetupError(
            f"no right to write to {existing}",
            f"run it as a user who has, such as: sudo {sys.executable} -m ml_udf.cli postgres install",
        )


def _server_user(name: str | None) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name or "postgres")
    except KeyError:
        if name is not None:
            raise SetupError(
                f"there is no user {name!r} here", "name the one that PostgreSQL runs as"
            ) from None
        return None


def _local_path(
    server: PostgresServer, user: pwd.struct_passwd | None, wanted: bool | None
) -> tuple[Path | None, list[str]]:
    """The site-packages with torch that the server can use, or notes that say why there are none."""
    if wanted is False:
        return None, []
    reason, path = _local_obstacle(server, user)
    if not reason:
        return path, []
    if wanted:
        raise SetupError(f"local: endpoints cannot work: {reason}", "mend that, or install with --no-local")
    return None, [f"local: endpoints will not work ({reason}); http:// endpoints will"]


def hidden_from(user: pwd.struct_passwd, paths: Iterable[Path]) -> str:
    """Why `user` cannot read all of `paths`; '' where it can."""
    for path in paths:
        if hidden := _first_unreadable(path, user):
            return f"user {user.pw_name} cannot read {hidden}"
    return ""


def _local_obstacle(server: PostgresServer, user: pwd.struct_passwd | None) -> tuple[str, Path | None]:
    linked, ours = server.python_version(), sys.version_info[:2]
    if linked is not None and linked != ours:
        return f"the server's Python is {_dotted(linked)}, this one is {_dotted(ours)}", None
    if missing := _missing_packages():
        return f"not installed here: {', '.join(missing)}; pip install 'ml_udf[worker]'", None
    path = _site_packages()
    if user and (reason := hidden_from(user, [path])):
        return reason, None
    if loose := _first_loose(path, user) or _first_loose_entry(path, user):
        return loose, None
    return "", path


def _missing_packages() -> list[str]:
    return [name for name in _LOCAL_NEEDS if importlib.util.find_spec(name) is None]


def _site_packages() -> Path:
    return _package_dir("torch").parent


def _first_unreadable(path: Path, user: pwd.struct_passwd) -> Path | None:
    """The first of `path` and its parents, from the top, that `user` may not enter."""
    groups = set(os.getgrouplist(user.pw_name, user.pw_gid))
    for directory in (*reversed(path.parents), path):
        status = directory.stat()
        shift = 6 if status.st_uid == user.pw_uid else 3 if status.st_gid in groups else 0
        if not (status.st_mode >> shift) & 0o1:
            return directory
    return None


def _first_loose(path: Path, user: pwd.struct_passwd | None) -> str:
    """What is wrong with the first of `path` and its parents that others could change; '' where none is."""
    # By the name that is written down and by what it stands for: a link's own parents count as well.
    ways = {path.absolute(), path.resolve()}
    directories = {directory for way in ways for directory in (way, *way.parents)}
    return next(filter(None, (_loose(one, user) for one in sorted(directories))), "")


def _first_loose_entry(path: Path, user: pwd.struct_passwd | None) -> str:
    """Likewise of what lies directly in `path`: a package that somebody else owns is as bad."""
    entries = (entry for entry in sorted(path.iterdir()) if not entry.is_symlink() or entry.exists())
    return next(filter(None, (_loose(entry, user) for entry in entries)), "")


def _loose(path: Path, user: pwd.struct_passwd | None) -> str:
    status = path.stat()
    users, groups = {0, os.getuid()}, {0, os.getgid()}
    if user is not None:
        users.add(user.pw_uid)
        groups.add(user.pw_gid)
    if status.st_uid not in users:
        return f"{path} belongs to user {_user_name(status.st_uid)}, who could change it"
    if path.is_dir() and status.st_mode & stat.S_ISVTX:  # as /tmp: nobody renames what is another's
        return ""
    if status.st_mode & stat.S_IWOTH:
        return f"{path} is writable by everybody"
    if status.st_mode & stat.S_IWGRP and status.st_gid not in groups:
        return f"{path} is writable by group {status.st_gid}"
    return ""


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _install_module(
    server: PostgresServer, lib_dir: Path, wanted: bool | None, notes: list[str]
) -> Path | None:
    """Build the batching module and put it where the server loads modules from."""
    if wanted is False:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="ml_udf-build-") as build_dir:
            built = build_module(server, sources() / "batch", Path(build_dir))
            _check_writable(lib_dir)
            _make_directory(lib_dir)
            # A file that sessions have mapped is replaced, never overwritten: that would crash them.
            fresh = lib_dir / f".{MODULE}.new"
            shutil.copyfile(built, fresh)
            fresh.chmod(0o755)
            return fresh.rename(lib_dir / f"{MODULE}.so")
    except SetupError as error:
        if wanted:
            raise
        notes.append(f"no batching module, scalar functions are called row by row ({error.message})")
        return None


# ── files ──────────────────────────────────────────────────────────────────────────────────────────


def _install_packages(python_dir: Path) -> None:
    """Put the packages at `python_dir` in one rename, so that no session sees half of them."""
    _make_directory(python_dir.parent)
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=python_dir.parent))
    for package in _PACKAGES:
        for source, relative in _files(package):
            target = fresh / package / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    compileall.compile_dir(fresh, quiet=1, stripdir=fresh, prependdir=python_dir)
    for path in (fresh, *fresh.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    if python_dir.exists():
        old = Path(tempfile.mkdtemp(prefix=".old-", dir=python_dir.parent))
        python_dir.rename(old / "packages")
        fresh.rename(python_dir)
        shutil.rmtree(old)
    else:
        fresh.rename(python_dir)


def _files(package: str) -> Iterator[tuple[Path, Path]]:
    package_dir = _package_dir(package)
    for source in sorted(package_dir.rglob("*.py")):
        relative = source.relative_to(package_dir)
        wanted = _ONLY.get(package, ("",))
        if relative.as_posix().startswith(wanted) and relative.parts[0] not in _NOT.get(package, set()):
            yield source, relative


def _package_dir(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SetupError(f"the package {package!r} is missing from this installation", "reinstall ml_udf")
    return Path(spec.origin).parent


def _write(path: Path, text: str) -> None:
    _make_directory(path.parent)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.chmod(0o644)
    fresh.rename(path)


def _make_directory(path: Path) -> None:
    """Create it and what is missing above it, for everybody to enter, whatever the umask is."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing):
        directory.mkdir()
        directory.chmod(0o755)


def _existing(path: Path) -> Path:
    """`path`, or the nearest directory above it that exists."""
    return next(directory for directory in (path, *path.parents) if directory.exists())


def _below(root: Path, path: Path) -> Path:
    return root / path.relative_to(path.anchor)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version[:2]))
