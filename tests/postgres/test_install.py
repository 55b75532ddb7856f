"""`ml-udf postgres install`, `uninstall` and `sandbox`: what they write, refuse, leave."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ml_udf.cli import pg_extension
from ml_udf.cli.pg_extension import default_version, install, uninstall
from ml_udf.cli.pg_sandbox import Sandbox, sandbox
from ml_udf.cli.pg_server import PostgresServer, SetupError
from ml_udf.cli.postgres import app
from tests.postgres.fixtures import Engine
from tests.waiting import wait_until

_numbers = itertools.count(1)


@pytest.fixture
def fake(open_folder: Path) -> PostgresServer:
    """An installation with PL/Python of this Python's version, in a folder that everybody can enter."""
    prefix = open_folder / f"pg{next(_numbers)}"
    share, lib = prefix / "share", prefix / "lib"
    (share / "extension").mkdir(parents=True)
    lib.mkdir()
    for folder in (prefix, share, lib, share / "extension"):
        folder.chmod(0o755)
    (share / "extension" / "plpython3u.control").write_text("")
    version = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    (lib / "plpython3.so").write_bytes(b"\x7fELF...\0" + version.encode() + b"\0")
    return PostgresServer(
        version="15.20",
        bin_dir=prefix / "bin",
        share_dir=share,
        lib_dir=lib,
        include_dir=prefix / "include",
        pgxs=prefix / "pgxs.mk",
        pg_config=prefix / "bin" / "pg_config",
    )


def test_it_writes_the_extension_and_its_python_and_removes_them_again(fake: PostgresServer) -> None:
    before = sorted(fake.share_dir.rglob("*"))
    done = install(fake, local=False)
    names = {path.name for path in done.extension_dir.glob("ml_udf*")}
    assert "ml_udf.control" in names
    assert any(name.endswith(f"--{default_version()}.sql") for name in names)
    packages = {path.name for path in done.python_dir.iterdir()}
    assert packages == {"ml_udf", "gpu_worker", "server"}
    assert not (done.python_dir / "ml_udf" / "cli").exists()
    # of the server only what an ensemble's combination needs: no app, no routes, no store
    assert {path.name for path in (done.python_dir / "server").glob("*.py")} == {
        "__init__.py",
        "policy_names.py",
        "record.py",
    }
    uninstall(fake)
    assert sorted(fake.share_dir.rglob("*")) == before


def test_everybody_can_read_the_python_and_nobody_else_can_write_it(fake: PostgresServer) -> None:
    umask = os.umask(0o077)
    try:
        done = install(fake, local=False)
    finally:
        os.umask(umask)
    for path in (
        done.python_dir.parent,
        done.python_dir,
        *done.python_dir.rglob("*"),
        *done.extension_dir.glob("ml_udf*"),
    ):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)
        assert path.stat().st_uid == os.getuid()


def test_the_python_path_stands_in_every_script_and_no_placeholder_is_left(fake: PostgresServer) -> None:
    done = install(fake, local=False)
    scripts = list(done.extension_dir.glob("ml_udf--*.sql"))
    assert scripts
    for script in scripts:
        assert json.dumps(str(done.python_dir)) in script.read_text()
        assert "_PATH@" not in script.read_text()


def test_what_runs_in_the_server_needs_the_standard_library_alone(fake: PostgresServer) -> None:
    done = install(fake, local=False)
    code = f"""
import sys
sys.path.insert(0, {str(done.python_dir)!r})
import ml_udf.postgres
print(ml_udf.__file__)"""
    isolated = [sys.executable, "-I", "-S", "-c", code]  # no site-packages
    printed = subprocess.run(isolated, check=True, capture_output=True, text=True).stdout
    assert printed.strip() == str(done.python_dir / "ml_udf" / "__init__.py")


def test_installing_again_replaces_and_leaves_nothing_behind(fake: PostgresServer) -> None:
    first = install(fake, local=False)
    stale = first.python_dir / "ml_udf" / "stale.py"
    stale.write_text("")
    listing = sorted(p.relative_to(fake.share_dir) for p in fake.share_dir.rglob("*") if p != stale)
    install(fake, local=False)
    assert sorted(p.relative_to(fake.share_dir) for p in fake.share_dir.rglob("*")) == listing


def test_a_server_without_plpython_is_refused_with_the_package_to_install(fake: PostgresServer) -> None:
    (fake.share_dir / "extension" / "plpython3u.control").unlink()
    with pytest.raises(SetupError, match="postgresql-plpython3-15"):
        install(fake)


def test_a_server_with_an_older_python_is_refused(fake: PostgresServer) -> None:
    (fake.lib_dir / "plpython3.so").write_bytes(b"libpython3.9.so.1.0\0")
    with pytest.raises(SetupError, match=r"linked to Python 3\.9"):
        install(fake)


def test_another_python_than_this_one_costs_local_endpoints_alone(fake: PostgresServer) -> None:
    (fake.lib_dir / "plpython3.so").write_bytes(b"libpython3.99.so.1.0\0")
    done = install(fake)
    assert done.local_path is None
    assert "the server's Python is 3.99" in done.notes[0]
    with pytest.raises(SetupError, match="--no-local"):
        install(fake, local=True)


def test_packages_that_the_servers_user_cannot_read_are_named(
    fake: PostgresServer, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = open_folder / "hidden"
    hidden.mkdir(mode=0o700)
    monkeypatch.setattr(pg_extension, "_site_packages", lambda: hidden)
    monkeypatch.setattr(pg_extension, "_missing_packages", list)
    done = install(fake, server_user="nobody")
    assert done.local_path is None
    assert f"user nobody cannot read {hidden}" in done.notes[0]


def test_a_folder_that_the_servers_user_cannot_enter_is_named(fake: PostgresServer) -> None:
    fake.share_dir.chmod(0o700)
    with pytest.raises(SetupError, match=f"user nobody, .* cannot enter {fake.share_dir}"):
        install(fake, local=False, server_user="nobody")
    assert not list(fake.share_dir.glob("ml_udf*"))


def test_without_the_right_to_write_nothing_is_changed(
    fake: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SetupError, match="no right to write"):
        install(fake, local=False)
    assert not list(fake.share_dir.glob("ml_udf*"))


def test_without_headers_there_is_no_batching_and_a_note_that_says_so(fake: PostgresServer) -> None:
    done = install(fake, local=False)
    assert done.module is None
    assert "called row by row" in done.notes[0]
    assert "headers of PostgreSQL 15.20 are missing" in done.notes[0]
    with pytest.raises(SetupError, match="postgresql-server-dev-15"):
        install(fake, local=False, batching=True)


def test_a_user_that_does_not_exist_is_refused(fake: PostgresServer) -> None:
    with pytest.raises(SetupError, match="no user 'nosuchuser'"):
        install(fake, server_user="nosuchuser")


def test_a_pg_config_that_is_none_is_refused() -> None:
    for path in ("/nowhere/pg_config", "/bin/true"):
        with pytest.raises(SetupError, match="cannot be run as pg_config"):
            PostgresServer.find(Path(path))


def test_the_commands_say_what_comes_next_and_what_is_wrong(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    runner = CliRunner()
    done = runner.invoke(
        app, ["install", "--root", str(tmp_path), "--no-local", "--no-batching", "--server-user", "root"]
    )
    assert done.exit_code == 0, done.output
    assert "CREATE EXTENSION ml_udf CASCADE" in done.output
    assert "removed" in runner.invoke(app, ["uninstall", "--root", str(tmp_path)]).output
    assert "nothing was installed" in runner.invoke(app, ["uninstall", "--root", str(tmp_path)]).output
    refused = runner.invoke(app, ["install", "--pg-config", "/nowhere"])
    assert refused.exit_code == 1
    assert "Traceback" not in refused.output


def test_the_sandbox_command_ends_with_the_status_of_its_sql(postgres_server: PostgresServer) -> None:
    runner = CliRunner()
    listed = "SELECT * FROM ml_udf.stat_functions"
    assert runner.invoke(app, ["sandbox", "-c", listed]).exit_code == 0
    assert runner.invoke(app, ["sandbox", "-c", "SELECT nonsense"]).exit_code == 1


def test_a_sandbox_is_private(cluster: Sandbox) -> None:
    assert cluster.directory.stat().st_mode & 0o077 == 0
    assert cluster.sql("SHOW listen_addresses") == "127.0.0.1"
    psql = [*cluster.program("psql", "-X", "-w", "-c", "SELECT 1", "-d")]
    url = cluster.dsn(tcp=True)
    subprocess.run([*psql, url], check=True, capture_output=True)
    guessed = subprocess.run(
        [*psql, url.replace(cluster.password, "guess")], capture_output=True, check=False
    )
    assert b"password authentication failed" in guessed.stderr


def test_a_stopped_sandbox_leaves_nothing(postgres_server: PostgresServer) -> None:
    cluster = Sandbox.start(postgres_server, local=False)
    postmaster = _postmaster(cluster.directory)
    assert _runs(postmaster)
    cluster.stop()
    cluster.stop()
    assert not cluster.directory.exists()
    assert not _runs(postmaster)


def test_a_killed_owner_leaves_no_cluster_running(postgres_server: PostgresServer) -> None:
    code = """
import time
from collections.abc import Iterator
from ml_udf.cli.pg_sandbox import Sandbox, sandbox
from ml_udf.cli.pg_server import PostgresServer
print(Sandbox.start(PostgresServer.find(), extension=False).directory, flush=True)
time.sleep(60)"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    directory = Path(owner.stdout.readline().strip())
    postmaster = _postmaster(directory)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    wait_until(lambda: not _runs(postmaster))
    subprocess.run(["rm", "-rf", str(directory)], check=True)


def test_a_setting_that_postgresql_refuses_is_told_from_its_log(postgres_server: PostgresServer) -> None:
    with pytest.raises(SetupError, match="no_such_setting"):
        Sandbox.start(postgres_server, settings={"no_such_setting": "1"}, extension=False)


def _postmaster(directory: Path) -> int:
    return int((directory / "data" / "postmaster.pid").read_text().splitlines()[0])


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def site_packages(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages for `local:` endpoints, below a home of their own."""
    path = open_folder / f"home{next(_numbers)}" / "venv" / "site-packages"
    (path / "torch").mkdir(parents=True)
    (path / "torch" / "__init__.py").write_text("")
    for directory in (path.parents[1], path.parents[0], path, path / "torch"):
        directory.chmod(0o755)
    monkeypatch.setattr(pg_extension, "_site_packages", lambda: path)
    monkeypatch.setattr(pg_extension, "_missing_packages", list)
    return path


@pytest.mark.security
@pytest.mark.skipif(os.getuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("which", ["../..", "..", ".", "torch"])
def test_packages_that_an_ordinary_user_could_change_are_not_the_backends(
    fake: PostgresServer, site_packages: Path, which: str
) -> None:
    assert install(fake).local_path == site_packages
    changed = (site_packages / which).resolve()
    os.chown(changed, 4242, 4242)
    done = install(fake)
    assert done.local_path is None
    assert f"{changed} belongs to user 4242, who could change it" in done.notes[0]
    with pytest.raises(SetupError, match="belongs to user 4242"):
        install(fake, local=True)
    os.chown(changed, 0, 0)
    for mode, who in ((0o775, "group 4242"), (0o757, "everybody")):
        os.chown(changed, 0, 4242)
        changed.chmod(mode)
        assert f"{changed} is writable by {who}" in install(fake).notes[0]


@pytest.mark.security
@pytest.mark.skipif(os.getuid() != 0, reason="gives files to another user")
def test_a_link_is_followed_to_what_could_be_changed(
    fake: PostgresServer, site_packages: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = open_folder / f"link{next(_numbers)}"
    link.symlink_to(site_packages)
    monkeypatch.setattr(pg_extension, "_site_packages", lambda: link)
    assert install(fake).local_path == link
    os.chown(site_packages.parent, 4242, 4242)
    assert "belongs to user 4242" in install(fake).notes[0]


@pytest.mark.security
@pytest.mark.skipif(os.getuid() != 0, reason="gives files to another user")
def test_the_extensions_own_python_is_put_nowhere_that_others_could_change(fake: PostgresServer) -> None:
    os.chown(fake.share_dir, 4242, 4242)
    with pytest.raises(SetupError, match="belongs to user 4242"):
        install(fake, local=False)
    assert not list(fake.share_dir.glob("ml_udf*"))
    os.chown(fake.share_dir, 0, 0)
    fake.share_dir.chmod(0o777)
    with pytest.raises(SetupError, match="writable by everybody"):
        install(fake, local=False)


@pytest.fixture(scope="module")
def preloading(postgres_server: PostgresServer) -> Iterator[Sandbox]:
    """A cluster whose databases and roles load the batching module."""
    with sandbox(postgres_server, local=False, extension=False) as running:
        running.sql("CREATE DATABASE food; CREATE ROLE ann LOGIN")
        running.sql("ALTER DATABASE food SET session_preload_libraries = 'ml_udf_batch'")
        running.sql("ALTER ROLE ann IN DATABASE food SET session_preload_libraries = 'other, ml_udf_batch'")
        running.sql("ALTER DATABASE postgres SET work_mem = '8MB'")
        yield running


def test_a_module_that_sessions_load_is_not_removed_and_the_databases_are_listed(
    fake: PostgresServer, preloading: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresServer, "find", lambda _=None: fake)
    install(fake, local=False)
    module = fake.lib_dir / "ml_udf_batch.so"
    module.write_text("")
    runner = CliRunner()
    refused = runner.invoke(app, ["uninstall", "--postgres", preloading.dsn()])
    assert refused.exit_code == 1
    assert 'ALTER DATABASE "food" RESET session_preload_libraries;' in refused.output
    assert 'ALTER ROLE "ann" IN DATABASE "food" RESET session_preload_libraries;' in refused.output
    assert "nothing was removed" in refused.output
    assert module.exists()
    forced = runner.invoke(app, ["uninstall", "--postgres", preloading.dsn(), "--force"])
    assert forced.exit_code == 0, forced.output
    assert "PGOPTIONS='-c session_preload_libraries='" in forced.output
    assert not module.exists()


def test_a_module_that_nobody_loads_is_removed(
    fake: PostgresServer, preloading: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresServer, "find", lambda _=None: fake)
    preloading.sql("ALTER DATABASE food RESET ALL; ALTER ROLE ann IN DATABASE food RESET ALL")
    install(fake, local=False)
    (fake.lib_dir / "ml_udf_batch.so").write_text("")
    assert CliRunner().invoke(app, ["uninstall", "--postgres", preloading.dsn()]).exit_code == 0
    assert not (fake.lib_dir / "ml_udf_batch.so").exists()


def test_a_module_by_which_watches_note_is_not_removed(
    engine: Engine, cluster: Sandbox, fake: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.query('CREATE SCHEMA food; CREATE TABLE food."Log" (id int PRIMARY KEY, image_path text)')
    engine.query(
        """CALL ml_udf.score_table('food."Log"', 'udf_food_name', 'image_path', result_table => 'scores',
               watch => true)"""
    )
    monkeypatch.setattr(PostgresServer, "find", lambda _=None: fake)
    monkeypatch.setattr("ml_udf.cli.postgres.preloads", lambda _: [])
    install(fake, local=False)
    module = fake.lib_dir / "ml_udf_batch.so"
    module.write_text("")
    told = ["uninstall", "--postgres", cluster.dsn()]
    refused = CliRunner().invoke(app, told)
    assert refused.exit_code == 1
    assert f'database {engine.value("SELECT current_database()")}: watches of food."Log"' in refused.output
    assert "nothing was removed" in refused.output
    engine.query("SELECT ml_udf.drop_watch(id) FROM ml_udf.watches")
    assert CliRunner().invoke(app, told).exit_code == 0
    assert not module.exists()


def test_a_cluster_that_cannot_be_asked_is_said_with_the_way_back_in(
    fake: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresServer, "find", lambda _=None: fake)
    (fake.lib_dir / "ml_udf_batch.so").write_text("")
    done = CliRunner().invoke(app, ["uninstall", "--postgres", "host=/nowhere dbname=x"])
    assert done.exit_code == 0
    assert "was not asked" in done.output
    assert "PGOPTIONS" in done.output
