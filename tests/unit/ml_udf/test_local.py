"""What `local:` promises where several threads share one small memory."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import ml_udf.local.transport as local
from gpu_worker.engine import Engine
from gpu_worker.pipeline.batch import Batch
from gpu_worker.settings import Settings
from ml_udf.cli import export_model
from ml_udf.cli.app import app
from ml_udf.client import Client
from ml_udf.client.exchange import AnswerDetail
from ml_udf.errors import BadOption, Cancelled, UnknownFunction
from ml_udf.local import catalog
from server.ensemble.evidence import EvidenceStates
from server.ensemble.fit import Fit, SubsetFit
from tests.models import hashing_model, label_of
from tests.waiting import wait_until

THREADS = 4
CALLS = 25


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of three models, of which one alone may be resident."""
    for name in ("one", "two", "three"):
        hashing_model(tmp_path / "models", name, delay_ms=1)
    as_given = local._settings

    def room_for_one(options: dict[str, list[str]]) -> Settings:
        return dataclasses.replace(as_given(options), resident_models=1)

    monkeypatch.setattr(local, "_settings", room_for_one)
    return tmp_path


def test_threads_that_evict_each_others_models_all_get_their_answers(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Engine.begin

    def begin_late(self: Engine, *args: Any, **kwargs: Any) -> Batch:
        time.sleep(0.005)  # between a look at what is resident and the batch's hold on it
        return begin(self, *args, **kwargs)

    monkeypatch.setattr(Engine, "begin", begin_late)
    client = Client(f"local:{home}")
    faults: list[BaseException] = []

    def ask(first: int) -> None:
        try:
            for call in range(CALLS):
                name = ("one", "two", "three")[(first + call) % 3]
                values = [f"{first} {call} {row}" for row in range(3)]
                assert client.predict(name, values).values == [label_of(value) for value in values]
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    client.close()
    assert faults == []


def models(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/v1/models")["models"]
    return found


def test_who_waits_for_room_can_be_cancelled(home: Path) -> None:
    hashing_model(home / "models", "slow", delay_ms=3000)
    client = Client(f"local:{home}")
    busy = threading.Thread(target=client.predict, args=("slow", ["a"]))
    busy.start()
    wait_until(lambda: ("slow", True) in [(model["name"], model["resident"]) for model in models(client)], 30)
    waited: list[int] = []

    def give_up() -> None:
        waited.append(1)
        if len(waited) > 10:
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        client.predict("one", ["a"], on_wait=give_up)
    busy.join(timeout=30)
    assert client.predict("one", ["a"]).values == [label_of("a")]
    client.close()


def test_what_was_fitted_by_a_later_version_is_refused_and_not_left_out(home: Path) -> None:
    members = [{"model": name, "version": 1, "accuracy": 0.5} for name in ("one", "two")]
    deployed = {
        "name": "f",
        "version": 1,
        "task": "text-classification",
        "input": {"name": "text", "form": "text"},
        "combine": "log_pool",
        "fit": {"format": 99},
        "members": members,
    }
    (home / "functions").mkdir()
    (home / "functions" / "f.json").write_text(json.dumps(deployed))
    client = Client(f"local:{home}")
    with pytest.raises(BadOption, match="what was fitted of f cannot be read: its format is 99") as caught:
        client.predict("f", ["x"])
    client.close()
    assert "deploy the function anew" in caught.value.hint


def planned(home: Path, name: str, plan: list[int], edge: float = 0.5) -> None:
    """A function of `one` and `two` whose plan tells rows apart by whether `one` is at least `edge` sure."""
    evidence = EvidenceStates(
        members=2,
        subsets=(1, 2, 3),
        edges={0: (), 1: (edge,), 2: (), 3: ()},
        first={0: 0, 1: 1, 2: 3, 3: 4},
        right=np.array([0.0, 0.5, 0.75, 0.5, 0.625]),
        rows=np.full(5, 100.0),
        following={},
    )
    subsets = tuple(SubsetFit(each, (1.0,) * len(each), 0.5, 0.5) for each in ((0,), (1,), (0, 1)))
    fit = Fit(("one", "two"), (1.0, 1.0), subsets, 100, 4, evidence)
    deployed = {
        "name": name,
        "version": 1,
        "task": "text-classification",
        "input": {"name": "text", "form": "text"},
        "combine": "log_pool",
        "fit": fit.to_json(),
        "plan": plan,
        "members": [{"model": model, "version": 1, "accuracy": 0.5} for model in ("one", "two")],
    }
    (home / "functions").mkdir(exist_ok=True)
    (home / "functions" / f"{name}.json").write_text(json.dumps(deployed))


def without_columns(details: Sequence[AnswerDetail | None]) -> list[AnswerDetail]:
    return [replace(each, columns=None) for each in details if each is not None]


def test_by_a_plan_only_the_members_that_rows_need_are_asked_and_loaded(home: Path) -> None:
    planned(home, "sure", [0, 1, -1, -1, -1])
    planned(home, "unsure", [0, 1, -1, -1, -1], edge=1.5)
    client = Client(f"local:{home}")
    rows = ["a", "b", "c"]
    found = client.predict("sure", rows, detail=True)
    assert found.values == [label_of(row) for row in rows]
    assert without_columns(found.details) == [AnswerDetail(("one",), 0.75, None)] * 3
    assert {model["name"] for model in models(client) if model["resident"]} == {"one"}
    found = client.predict("unsure", rows, detail=True)
    assert found.values == [label_of(row) for row in rows]
    two = [AnswerDetail(("one", "two"), 0.625, None)] * 3
    assert without_columns(found.details) == two, "there is room for one at a time"
    assert client.predict("sure", []).values == []
    client.close()


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ([0, -1], "its plan is of 2 states, and there are 5"),
        ([-1, 1, -1, -1, -1], "asks -1 of rows that 0b0"),
        ([0, 0, -1, -1, -1], "asks 0 of rows that 0b1"),
        ([0, 7, -1, -1, -1], "asks 7"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused(home: Path, plan: list[int], said: str) -> None:
    planned(home, "f", plan)
    client = Client(f"local:{home}")
    with pytest.raises(BadOption, match=said):
        client.predict("f", ["x"])
    client.close()


@pytest.mark.security
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("right", [0.0]),
        ("right", [math.nan] * 5),
        ("right", [0.5] * 6),
        ("rows", [1.0] * 4),
        ("rows", ["many"] * 5),
        ("rows", 5),
        ("members", 3),
        ("members", math.inf),
        ("members", 10**9),
        ("members", -1),
        ("subsets", []),
        ("subsets", [1, 2, 8]),
        ("subsets", [1, 1, 3]),
        ("subsets", [math.inf, 2, 3]),
        ("edges", [[math.nan], [], []]),
        ("edges", [[0.5, 0.1], [], []]),
        ("edges", [[0.5]]),
        ("following", [[1, 1, [[1.0]]]]),
        ("following", [[1, 0, [[1.0], [1.0]]]]),
        ("following", [[9, 1, [[1.0]]]]),
        ("following", [[0, 5, [[1.0]]]]),
        ("following", 7),
    ],
)
def test_evidence_whose_parts_do_not_fit_is_refused_and_nothing_is_looked_up_beyond_it(
    home: Path, field: str, value: object
) -> None:
    planned(home, "f", [0, 1, -1, -1, -1])
    file = home / "functions" / "f.json"
    deployed = json.loads(file.read_text())
    deployed["fit"]["evidence"][field] = value
    file.write_text(json.dumps(deployed))
    client = Client(f"local:{home}")
    with pytest.raises(BadOption, match="cannot be read"):
        client.predict("f", ["x"])
    client.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"plan": [math.inf, 1, -1, -1, -1]}, "cannot be read"),
        ({"members": [{"model": "one", "version": 1}]}, "its plan asks one, two"),
        ({"members": [{"model": "three", "version": 1}], "plan": []}, "it is of one, two"),
        ({"members": [1]}, "the function 'f' of .* cannot be read"),
        ({"format": 2}, r"functions/f.json has the format 2, and this ml_udf reads 1"),
    ],
)
def test_a_fit_of_other_members_and_a_file_of_another_form_are_refused(
    home: Path, change: dict[str, Any], said: str
) -> None:
    planned(home, "f", [0, 1, -1, -1, -1])
    file = home / "functions" / "f.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    client = Client(f"local:{home}")
    with pytest.raises(BadOption, match=said):
        client.predict("f", ["x"])
    client.close()


@pytest.mark.parametrize(
    "damage",
    [{"input": "text"}, {"accuracy": "high"}, {"classes": 3}, {"input": {"form": ["text"]}}],
)
def test_a_damaged_model_is_told_by_its_file_alone_or_in_a_function(
    home: Path, damage: dict[str, Any]
) -> None:
    planned(home, "f", [0, 1, -1, -1, -1])
    file = home / "models" / "one" / "1" / "model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | damage))
    client = Client(f"local:{home}")
    for asked in ("one", "f"):
        with pytest.raises(BadOption, match=r"/one/1/model\.json is not a model manifest"):
            client.predict(asked, ["x"])
    for listing in ("/v1/models", "/v1/functions"):
        with pytest.raises(BadOption, match=r"/one/1/model\.json is not a model manifest"):
            client.get(listing)
    assert client.predict("two", ["x"]).values == [label_of("x")]
    client.close()


def test_a_copy_beside_the_versions_of_a_model_is_none_of_them(home: Path) -> None:
    versions = home / "models" / "one"
    for copy in ("1.bak", "2 of mine"):
        shutil.copytree(versions / "1", versions / copy)
    client = Client(f"local:{home}")
    assert [(row["name"], row["version"]) for row in client.get("/v1/models")["models"]] == [
        ("one", "1"),
        ("three", "1"),
        ("two", "1"),
    ]
    assert client.predict("one", ["x"]).values == [label_of("x")]
    assert export_model._in_home(home, "one", "") == versions / "1"
    client.close()


def test_what_has_changed_in_the_home_is_read_anew_at_the_next_look_and_nothing_else(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    as_ever = catalog._read

    def told_read(path: Path) -> dict[str, Any]:
        read.append("/".join(path.parts[-3:]))
        return as_ever(path)

    monkeypatch.setattr(catalog, "_read", told_read)
    planned(home, "f", [0, 1, -1, -1, -1])
    of_home = catalog.LocalCatalog(home)
    time.sleep(0.2)  # a file that is younger may change and look the same

    def version_of(name: str) -> str:
        read.clear()
        return of_home.function(name).version

    assert [version_of("f"), version_of("one")] == ["1", "1"]
    assert [version_of("f"), len(read), version_of("one"), len(read)] == ["1", 0, "1", 0]

    file = home / "functions" / "f.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 2}))
    assert [version_of("f"), version_of("f")] == ["2", "2"], "at once, though it is young"
    shutil.copytree(home / "models" / "one" / "1", home / "models" / "one" / "2")
    assert version_of("one") == "2", "a new version of a model is a new folder"
    time.sleep(0.2)
    version_of("f")
    (home / "models" / "two" / "1" / "model.json").touch()
    version_of("f")
    assert "two/1/model.json" in read, "a member's manifest is a part of it"
    file.unlink()
    with pytest.raises(UnknownFunction):
        version_of("f")


def test_an_exported_model_without_weights_is_its_manifest(home: Path, tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["export", "one", str(tmp_path / "out"), f"--endpoint=local:{home}"])
    assert told.output == f"{tmp_path / 'out'}: model.json; copied as it is\n"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.json"]
