"""`local:` endpoints: torch inside the server's process, under the same rules as everything else there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from ml_udf.cli.pg_sandbox import Sandbox
from ml_udf.cli.pg_server import PostgresServer
from tests.models import CLASSES, hashing_model, image_model
from tests.postgres.fixtures import Engine, connect
from tests.waiting import has_sleeping_thread, once


@pytest.fixture(scope="module")
def home(open_folder: Path) -> Path:
    """A home folder that PostgreSQL's user can read."""
    folder = open_folder / "home"
    hashing_model(folder / "models", "text_hash")
    hashing_model(folder / "models", "slow_hash", delay_ms=3_000)
    image_model(folder / "models", "photo_net")
    return folder


@pytest.fixture
def local(cluster: Sandbox, home: Path, postgres_engine: Callable[..., Engine]) -> Iterator[Engine]:
    if cluster.installed is None or cluster.installed.local_path is None:
        pytest.skip(f"LOCAL ENDPOINTS NOT TESTED: {cluster.installed and cluster.installed.notes}")
    engine = postgres_engine(f"local:{home}?media_root={home}", functions=["text_hash", "slow_hash"])
    yield engine
    assert cluster.sql("SELECT 1") == "1"  # whatever the session did, the cluster stands


def blocked_signals(pid: int) -> dict[int, int]:
    """Thread id → the mask of blocked signals, of every thread of a process."""
    masks = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = (task / "status").read_text().splitlines()
        masks[int(task.name)] = int(next(line for line in status if line.startswith("SigBlk"))[8:], 16)
    return masks


def test_a_function_answers_without_a_server(local: Engine) -> None:
    assert local.value("SELECT text_hash('a')") in CLASSES
    twice = local.value("SELECT text_hash_batch(ARRAY['a', NULL, 'a'])")
    assert twice == [twice[0], None, twice[0]]
    assert local.query("SELECT name FROM ml_udf.models ORDER BY 1") == [
        ("photo_net",),
        ("slow_hash",),
        ("text_hash",),
    ]


def test_no_thread_but_the_main_one_can_take_a_signal(local: Engine, home: Path, cluster: Sandbox) -> None:
    from PIL import Image

    photo = home / "photo.jpg"
    Image.effect_noise((80, 60), 50).convert("RGB").save(photo)
    local.query("SELECT ml_udf.create_function('photo_net')")
    assert local.value("SELECT photo_net(%s)", str(photo)) in CLASSES  # torch has run a forward pass
    pid = local.connection.info.backend_pid
    masks = blocked_signals(pid)
    assert len(masks) > 1
    for thread, mask in masks.items():
        for number in (2, 10, 14, 15):  # cancel, wake-up, timer, termination
            assert bool(mask >> (number - 1) & 1) == (thread != pid)


@pytest.mark.alone
def test_a_cancel_ends_a_forward_pass_soon(local: Engine) -> None:
    local.query("SELECT text_hash('warm')")
    pid, cancel = local.connection.info.backend_pid, local.connection.cancel
    with (
        once(lambda: has_sleeping_thread(pid), cancel) as acted_s,
        pytest.raises(psycopg.errors.QueryCanceled),
    ):
        local.query("SELECT slow_hash('a')")
    assert time.monotonic() - acted_s[0] < 1.0
    assert local.value("SELECT text_hash('a')") in CLASSES


@pytest.mark.alone
def test_statement_timeout_holds_for_forward_passes(local: Engine) -> None:
    local.query("SELECT text_hash('warm')")
    local.query("SET statement_timeout = '400ms'")
    began_s = time.monotonic()
    with pytest.raises(psycopg.errors.QueryCanceled):
        local.query("SELECT slow_hash('a')")
    assert time.monotonic() - began_s < 1.4


def test_a_session_with_a_model_ends_cleanly(cluster: Sandbox, local: Engine) -> None:
    began = cluster.sql("SELECT pg_postmaster_start_time()")
    other = Engine(local.dsn)
    other.query("SELECT text_hash('a')")
    other.close()
    pid = local.connection.info.backend_pid
    local.query("SELECT text_hash('a')")
    kill = f"SELECT pg_terminate_backend({pid})"
    killed = once(lambda: has_sleeping_thread(pid), lambda: cluster.sql(kill))
    with killed, pytest.raises(psycopg.errors.AdminShutdown):
        local.query("SELECT slow_hash('a')")
    assert cluster.sql("SELECT pg_postmaster_start_time()") == began


def test_a_home_that_is_none_or_hidden_is_named(local: Engine, tmp_path: Path) -> None:
    local.query("ALTER SERVER ml_udf OPTIONS (SET url 'local:/usr')")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="/usr is not a home folder"):
        local.query("SELECT text_hash('a')")
    tmp_path.chmod(0o000)
    try:
        local.query(f"ALTER SERVER ml_udf OPTIONS (SET url 'local:{tmp_path}/home')")
        with pytest.raises(psycopg.errors.IoError, match=r"/home cannot be read by this server's user"):
            local.query("SELECT text_hash('a')")
    finally:
        tmp_path.chmod(0o700)


def test_an_installation_without_it_says_how_to_get_it(postgres_server: PostgresServer, home: Path) -> None:
    cluster = Sandbox.start(postgres_server, local=False)
    try:
        cluster.sql("CREATE EXTENSION ml_udf CASCADE")
        engine = Engine(cluster.dsn())
        connect(engine, f"local:{home}")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as caught:
            engine.query("SELECT ml_udf.predict('text_hash', 'a')")
        assert "ml-udf postgres install --local" in (caught.value.diag.message_hint or "")
        engine.close()
    finally:
        cluster.stop()
