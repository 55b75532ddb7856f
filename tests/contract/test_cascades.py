"""A proxy before a function, from SQL on both engines: deployed, shown, asked, refused, kept."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from ml_udf.cli.app import app
from ml_udf.client import Options
from ml_udf.training import ARROW, TrainingCalls
from tests.engines import DuckDb, Engine, SqlError, make_engine
from tests.inference_server import InferenceServer, inference_server
from tests.task_models import tint_model
from tests.training_data import draw_photos
from tests.waiting import wait_until

JOB_S = 400.0  # training yields to everything else that the machine does
ROWS = 1400
NEW = 400
PHOTOS = 160  # of which 96 show how often the proxy agrees
LEARNER = "tfidf_linear"  # it takes a second
JOB = 2  # of the models of many rows
# A proxy is asked only where it saves time, by far more than two measurements of the same differ: the full
# function reads many more parts of a text, of which there is much that says nothing.
QUICK, SLOW = {"words": 1, "characters": 0}, {"words": 2, "characters": 8}
ASIDE = " and we sat by the window at a small table with a view of the old bridge over the river" * 6
Texts = list[tuple[str, str]]


def opinions(count: int, seed: int) -> Texts:
    """(text, mood): most are plain, some have a word of the other mood too."""
    draw = random.Random(seed)
    words = {
        "good": ["wonderful", "lovely", "delicious", "fine", "great"],
        "bad": ["awful", "bland", "burnt", "poor", "sad"],
    }
    rows = []
    for number in range(count):
        mood, other = ("good", "bad") if number % 2 else ("bad", "good")
        told = [draw.choice(words[mood]) for _ in range(2)]
        told += [draw.choice(words[other if draw.random() < 0.15 else mood])]
        draw.shuffle(told)
        rows.append(
            (f"{seed}/{number}: the {draw.choice(['soup', 'rice', 'tea'])} was {' '.join(told)}{ASIDE}", mood)
        )
    return rows


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    """(path, tint)."""
    folder = tmp_path_factory.mktemp("photos")
    return [(str(folder / name), tint) for name, tint in draw_photos(folder, PHOTOS)]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, photos: Texts) -> Iterator[InferenceServer]:
    """A server whose `mood_small` has learned from few rows, with a job that has learned from many; and two
    models that see tints, of which one takes far longer.
    """
    folder = tmp_path_factory.mktemp("house")
    roots = [Path(photos[0][0]).parent]
    with inference_server(folder, media_roots=roots) as server, server.client() as client:
        server.deploy(tint_model(folder / "made", "tint_small"))
        server.deploy(tint_model(folder / "made", "tint_large", rounds=30))
        calls = TrainingCalls(client)
        few = trained(calls, "few", opinions(ROWS, 1)[:90], QUICK)
        assert trained(calls, "moods", opinions(ROWS, 1), SLOW) == JOB
        calls.deploy(few, "mood_small", choose=LEARNER)
        yield server


def trained(calls: TrainingCalls, dataset: str, rows: Texts, parts: dict[str, int]) -> int:
    """The job that has learned from these; `parts` of a text that its model reads."""
    pushed(calls, dataset, rows, "text-classification", validation=0.25)
    knobs = [
        {"name": name, "dtype": "integer", "list": [value], "group": "architecture"}
        for name, value in parts.items()
    ]
    asked = {"dataset": dataset, "models": [LEARNER], "budget": "1 trials", "knobs": knobs}
    job = calls.train(asked)["id"]
    deadline_s = time.monotonic() + JOB_S
    while (known := calls.job(job))["state"] == "running" and time.monotonic() < deadline_s:
        time.sleep(0.2)
    assert known["state"] == "done", known["reason"]
    return int(job)


def pushed(calls: TrainingCalls, dataset: str, rows: Texts, task: str, *, validation: float) -> None:
    """A dataset of these (input, label)."""
    batch = pa.record_batch({"t": [text for text, _ in rows], "m": [label for _, label in rows]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    given = {
        "name": dataset,
        "query": "SELECT t, m FROM d",
        "target": "m",
        "key": "t",
        "task": task,
        "validation": validation,
    }
    calls.push(given, iter([sink.getvalue().to_pybytes()]), ARROW)


@pytest.fixture
def sql(engine_name: str, house: InferenceServer, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = make_engine(engine_name, house.url, request, [])
    made.query("DROP TABLE IF EXISTS said")
    made.query("CREATE TABLE said (t text)")
    values = ", ".join(f"('{text}')" for text, _ in opinions(NEW, 2))
    made.query(f"INSERT INTO said VALUES {values}")
    yield made
    made.close()


def called(sql: Engine) -> str:
    """The engine, in the names of its functions."""
    return sql.name.replace("-", "_")


def deployed(sql: Engine, function: str, options: str) -> dict[str, Any]:
    """What the deployment said of its cascade."""
    as_json = "to_json" if isinstance(sql, DuckDb) else "to_jsonb"
    call = f"ml_udf.deploy('{function}', job => {JOB}, {options})"
    ((told,),) = sql.query(f"SELECT {as_json}({call})::text")
    found: dict[str, Any] = json.loads(told)["cascade"]
    return found


def answered(sql: Engine, function: str) -> dict[str, tuple[str, str]]:
    """By text, the answer and who gave it."""
    one = "(d).value::text, array_to_string((d).answered_by, ',')"
    if isinstance(sql, DuckDb):
        one = "d.value, array_to_string(d.answered_by, ',')"
    rows = sql.query(
        f"SELECT t, {one} FROM (SELECT t, ml_udf.detail('{function}', t) AS d FROM said) AS asked"
    )
    return {text: (str(value).strip('"'), who) for text, value, who in rows}


def shown(sql: Engine, function: str) -> dict[str, Any]:
    """What the view of functions says of its cascade."""
    as_json = "to_json" if isinstance(sql, DuckDb) else "to_jsonb"
    ((told,),) = sql.query(
        f"SELECT {as_json}(selection)::text FROM ml_udf.functions WHERE name = '{function}'"
    )
    found: dict[str, Any] = json.loads(told)["cascade"]
    return found


def taught(sql: Engine, function: str, proxy: str = f"mood_small_{LEARNER}") -> dict[str, tuple[str, str]]:
    """Answers, once the server has learned that the proxy takes less: one slow first batch may say otherwise,
    and both are asked until that is no longer what is believed.
    """
    sql.set("answer_cache", "off")
    before = -1
    for _ in range(60):
        first = answered(sql, function)
        by_proxy = sum(who == proxy for _, who in first.values())
        if by_proxy == before > len(first) / 10:
            break
        before = by_proxy
        sql.set("min_agreement", "1.0")
        answered(sql, function)
        answered(sql, proxy.removesuffix(f"_{LEARNER}"))
        sql.set("min_agreement", "0")
    sql.set("answer_cache", "on")
    return first


def test_a_proxy_answers_what_it_is_sure_of_and_a_session_may_ask_for_more(
    sql: Engine, house: InferenceServer
) -> None:
    function = f"mood_{called(sql)}"
    told = deployed(sql, function, "cascade => 0.9, proxy => 'mood_small'")
    assert told["is_used"] is True
    assert (told["agreement"], told["proxy"]) == (0.9, f"mood_small_{LEARNER}/1")
    assert told["low"] >= 0.9
    first = taught(sql, function)
    by_proxy = [text for text, (_, who) in first.items() if who == f"mood_small_{LEARNER}"]
    assert len(first) == NEW
    assert len(by_proxy) > NEW / 10
    sql.set("min_agreement", "1.0")
    full = answered(sql, function)
    assert {who for _, who in full.values()} == {f"{function}_{LEARNER}"}
    agrees = sum(first[text][0] == full[text][0] for text in first) / NEW
    assert agrees >= 0.9
    passed_on = set(first) - set(by_proxy)
    assert all(first[text][0] == full[text][0] for text in passed_on)
    sql.set("min_agreement", "0.95")
    stricter = answered(sql, function)
    assert sum(who == f"mood_small_{LEARNER}" for _, who in stricter.values()) <= len(by_proxy)
    seen = shown(sql, function)
    assert seen["is_used"] is True
    assert seen["answered_rows"] >= 3 * NEW
    assert 0 < seen["answered_share"] < 1
    ((counted,),) = sql.query(
        f"SELECT max(proxy_rows) FROM ml_udf.deployments WHERE function = '{function}' AND is_current"
    )
    assert counted >= len(by_proxy)


def test_photos_are_answered_by_a_proxy_as_by_the_function(
    sql: Engine, house: InferenceServer, photos: Texts
) -> None:
    function = f"tint_{called(sql)}"
    sql.query("DROP TABLE IF EXISTS seen")
    sql.query("CREATE TABLE seen (t text, tint text)")
    sql.query("INSERT INTO seen VALUES " + ", ".join(f"('{path}', '{tint}')" for path, tint in photos))
    sql.query(
        f"SELECT ml_udf.create_dataset('{function}', 'SELECT t, tint FROM seen', target => 'tint', "
        "key => 't', task => 'image-classification', validation => 0.6)"
    )
    cascade = {"agreement": 0.9, "proxy": "tint_small", "dataset": function}
    with house.client() as client:
        told = client.put(f"/v1/functions/{function}", {"models": ["tint_large"], "cascade": cascade})
    assert told["cascade"]["is_used"] is True
    sql.query("DELETE FROM said")
    sql.query("INSERT INTO said SELECT t FROM seen")
    tints = dict(photos)
    first = taught(sql, function, "tint_small")
    assert {path: tint for path, (tint, _) in first.items()} == tints
    assert sum(who == "tint_small" for _, who in first.values()) > PHOTOS / 10
    sql.set("min_agreement", "1.0")
    assert answered(sql, function) == {path: (tint, "tint_large") for path, tint in photos}


def test_a_proxy_that_is_kept_off_is_tried_by_itself_while_nothing_waits(
    house: InferenceServer, photos: Texts
) -> None:
    paths, function = [path for path, _ in photos], "tint_dear"
    options = Options(answer_cache="off")
    with house.client() as client:
        pushed(TrainingCalls(client), "tints", photos, "image-classification", validation=0.6)
        cascade = {"agreement": 0.9, "proxy": "tint_large", "dataset": "tints"}
        client.put(f"/v1/functions/{function}", {"models": ["tint_small"], "cascade": cascade})

        def batches_of_the_proxy() -> int:
            (stats,) = client.get("/v2/models/tint_large/stats")["model_stats"]
            return int(stats["execution_count"])

        before = 0

        def is_answered_without_it() -> bool:
            """Once both have been asked, as what each takes is learned from what it took."""
            nonlocal before
            client.predict("tint_large", paths, options)
            client.predict("tint_small", paths, options)
            before = batches_of_the_proxy()
            client.predict(function, paths, options)
            (told,) = [one for one in client.get("/v1/functions")["functions"] if one["name"] == function]
            return told["selection"]["cascade"]["kept_off"] is not None

        wait_until(is_answered_without_it)
        wait_until(lambda: batches_of_the_proxy() > before)


def test_a_proxy_that_cannot_show_it_is_refused_with_the_numbers(sql: Engine) -> None:
    function = f"strict_{called(sql)}"
    told = deployed(sql, function, "cascade => 0.999, proxy => 'mood_small'")
    assert told["is_used"] is False
    assert told["needed"] > told["rows"] > 100
    assert str(told["needed"]) in told["reason"]
    assert {who for _, who in answered(sql, function).values()} == {f"{function}_{LEARNER}"}
    assert shown(sql, function)["reason"] == told["reason"]


def test_a_new_deployment_keeps_the_cascade_and_zero_ends_it(sql: Engine) -> None:
    function = f"kept_{called(sql)}"
    assert deployed(sql, function, "cascade => 0.9, proxy => 'mood_small'")["is_used"] is True
    again = deployed(sql, function, "slo_ms => 800")
    assert (again["agreement"], again["is_used"]) == (0.9, True)
    assert deployed(sql, function, "cascade => 0") is None
    sql.query(f"SELECT ml_udf.rollback('{function}')")
    assert shown(sql, function)["is_used"] is True


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("cascade => 1.5, proxy => 'mood_small'", "between 0 and 1"),
        ("cascade => -0.5, proxy => 'mood_small'", "between 0 and 1"),
        ("cascade => 0.9, proxy => 'nobody'", "nobody"),
        ("proxy => 'mood_small'", "no cascade"),
    ],
)
def test_what_cannot_be_is_said(sql: Engine, options: str, said: str) -> None:
    with pytest.raises(SqlError, match=said):
        deployed(sql, f"wrong_{called(sql)}", options)


def test_a_session_asks_for_a_share(sql: Engine) -> None:
    sql.set("min_agreement", "1.5")
    with pytest.raises(SqlError, match="min_agreement"):
        answered(sql, "mood_small")


def test_the_command_line_deploys_one_and_says_what_came_of_it(house: InferenceServer) -> None:
    asked = ["deploy", "by_command", str(JOB), "--cascade", "0.9", "--proxy", "mood_small"]
    done = CliRunner().invoke(app, [*asked, "--endpoint", house.url])
    assert done.exit_code == 0, done.output
    told = " ".join(done.output.split())
    assert f"by_command version 1: {LEARNER}" in told or f"by_command version 1: by_command_{LEARNER}" in told
    assert f"mood_small_{LEARNER}/1 answers first" in told
    refused = CliRunner().invoke(app, ["deploy", "by_command", str(JOB), "--proxy", "x", "-e", house.url])
    assert refused.exit_code != 0
    assert "no cascade" in refused.output


def test_the_page_says_who_answers_first(house: InferenceServer) -> None:
    with house.client() as client:
        TrainingCalls(client).deploy(JOB, "on_page", cascade=0.9, proxy="mood_small")
    page = urlopen(f"{house.url}/functions/on_page", timeout=30).read().decode()
    assert f"mood_small_{LEARNER}/1 is asked first" in page or "Its proxy is kept off: " in page
    assert "at the least" in page or "ms of a row" in page


def test_a_restarted_server_knows_the_cascade(house: InferenceServer) -> None:
    with house.client() as client:
        calls = TrainingCalls(client)
        told = calls.deploy(JOB, "lasting", cascade=0.9, proxy="mood_small")["cascade"]
    house.stop()
    house.start()
    with house.client() as client:
        (known,) = [each for each in client.get("/v1/functions")["functions"] if each["name"] == "lasting"]
    assert known["cascade"] == told
    assert known["selection"]["policy"] == "cascade"
