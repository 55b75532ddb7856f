"""Functions by wish in SQL: made, answered, explained and refused alike on every engine."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

import ml_udf.sdk as rafiki
from ml_udf.cli.app import app
from ml_udf.client import Client
from ml_udf.errors import BadOption
from tests.engines import Engine, SqlError
from tests.inference_server import InferenceServer
from tests.models import write_manifest
from tests.waiting import wait_until

CLASSES = ["broth", "stew", "roast", "salad"]
WISH = '{"purpose": "wish_small", "min_accuracy": 0.7, "slo_ms": 2000}'


@pytest.fixture(scope="module")
def models(server: InferenceServer, open_folder: Path) -> None:
    """wish_small: right in 0.8, quick. wish_large: right in 0.97, and 30 ms a row."""
    for name, accuracy, delay_ms in (("wish_small", 0.8, 0), ("wish_large", 0.97, 30)):
        folder = write_manifest(
            open_folder / "made",
            name,
            task="text-classification",
            architecture="hashing",
            architecture_options={"delay_ms": delay_ms},
            input={"form": "text"},
            classes=CLASSES,
            accuracy=accuracy,
            score={"metric": "accuracy", "value": accuracy, "rows": 400},
        )
        server.deploy(folder)


@pytest.fixture
def endpoint(server: InferenceServer, models: None) -> str:
    """A wish is a server's to keep: `local:` answers by the candidate that does at rest."""
    return server.url


def test_a_wish_makes_a_function_that_is_called_by_its_name(engine: Engine) -> None:
    engine.query(f"SELECT ml_udf.create_function('udf_wish', wants => '{WISH}')")
    ((label,),) = engine.query("SELECT udf_wish('a')")
    assert label in CLASSES


def test_an_answer_says_which_model_was_chosen_and_the_view_why(engine: Engine) -> None:
    engine.query(f"SELECT ml_udf.create_function('udf_wish', wants => '{WISH}')")
    ask = "SELECT (d).answered_by, (d).decision FROM (SELECT ml_udf.detail('udf_wish', 'a') AS d) AS told"
    ((who, why),) = engine.query(ask)
    assert list(who) == ["wish_small"]
    assert "wish_small/1 takes least of a device" in why
    engine.set("min_accuracy", "0.9")
    ((who, why),) = engine.query(ask)
    assert list(who) == ["wish_large"]
    assert why.startswith("wish_large/1 alone")
    decided = engine.query(
        "SELECT chosen, is_met, rows > 0 FROM ml_udf.decisions WHERE function = 'udf_wish' ORDER BY chosen"
    )
    assert decided == [("wish_large/1", True, True), ("wish_small/1", True, True)]


def test_the_command_makes_one_and_the_page_says_which_model_answers(
    server: InferenceServer, models: None
) -> None:
    asked = ["wish", "udf_shell", "--purpose", "wish_small", "--min-accuracy", "0.9"]
    done = CliRunner().invoke(app, [*asked, "--endpoint", server.url])
    assert done.exit_code == 0, done.output
    assert "wish_large answers at rest, of 2 candidates" in " ".join(done.output.split())
    with closing(Client(server.url)) as client:
        client.predict("udf_shell", ["a"])
    page = httpx.get(f"{server.url}/functions/udf_shell").text
    assert "Which model answers" in page
    assert "wish_large/1 alone" in page
    assert "purpose wish_small, min_accuracy 0.9" in page


def test_the_sdk_makes_one_and_asks_it(server: InferenceServer, models: None) -> None:
    ask = rafiki.wish("udf_from_python", purpose="wish_small", min_accuracy=0.9, endpoint=server.url)
    assert (ask.function, ask.models, ask.accuracy) == ("udf_from_python", ("wish_large",), None)
    with pytest.raises(BadOption, match="nearest"):
        rafiki.wish("udf_no", purpose="wish_small", min_accuracy=0.99, endpoint=server.url)


def test_of_a_function_that_names_its_models_nothing_was_decided(engine: Engine) -> None:
    ((why,),) = engine.query("SELECT (d).decision FROM (SELECT ml_udf.detail('udf_text', 'a') AS d) AS told")
    assert why is None


def test_a_wish_that_nothing_meets_is_refused_with_the_nearest(engine: Engine) -> None:
    wish = '{"purpose": "wish_small", "min_accuracy": 0.99}'
    with pytest.raises(
        SqlError, match=r"none of 2 models keeps min_accuracy 0\.99.*nearest: 0\.9\d+ by wish_large/1"
    ):
        engine.query(f"SELECT ml_udf.create_function('udf_no', wants => '{wish}')")
    with pytest.raises(SqlError, match="wants"):
        engine.query("SELECT ml_udf.create_function('udf_no', wants => '{\"speed\": 3}')")


def test_a_query_asks_for_no_more_than_there_is(engine: Engine) -> None:
    engine.query(f"SELECT ml_udf.create_function('udf_wish', wants => '{WISH}')")
    engine.set("min_accuracy", "0.99")
    with pytest.raises(SqlError, match="nearest"):
        engine.query("SELECT udf_wish('a')")


def test_a_kept_answer_is_not_given_for_a_goal_that_its_model_does_not_keep(
    server: InferenceServer, models: None
) -> None:
    client = Client(server.url)
    client.put("/v1/functions/wish_kept", {"wants": {"purpose": "wish_small", "min_accuracy": 0.7}})

    def who(**parameters: float) -> tuple[str, int]:
        told = client.post(
            "/v2/models/wish_kept/infer",
            {
                "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["kept once"]}],
                "outputs": [{"name": "label"}, {"name": "answered_by"}],
                "parameters": parameters,
            },
        )
        return told["outputs"][1]["data"][0], told.get("parameters", {}).get("ml_udf_cached_rows", 0)

    assert who() == ("wish_small", 0)
    assert who(ml_udf_min_accuracy=0.9) == ("wish_large", 0)
    assert who(ml_udf_min_accuracy=0.9) == ("wish_large", 1)
    assert who() == ("wish_small", 1)
    client.close()


def test_a_model_whose_file_is_gone_answers_no_wish_until_it_is_back(
    server: InferenceServer, open_folder: Path
) -> None:
    for name, accuracy in (("wish_whole", 0.8), ("wish_torn", 0.97)):
        folder = write_manifest(
            open_folder / "made",
            name,
            task="text-classification",
            architecture="hashing",
            input={"form": "text"},
            classes=["whole", "torn"],
            accuracy=accuracy,
            score={"metric": "accuracy", "value": accuracy, "rows": 400},
            files=[{"name": "words.txt", "role": "vocabulary"}],
        )
        (folder / "words.txt").write_text("words")
        server.deploy(folder)
    with closing(Client(server.url)) as client:
        client.put("/v1/functions/wish_files", {"wants": {"purpose": "wish_whole", "slo_ms": 60_000}})

        def who(**parameters: float) -> tuple[str, str]:
            asked = {
                "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}],
                "outputs": [{"name": "answered_by"}, {"name": "decision"}],
                "parameters": parameters,
            }
            one, other = client.post("/v2/models/wish_files/infer", asked)["outputs"]
            return one["data"][0], other["data"][0]

        assert who()[0] == "wish_torn"
        torn = server.home / "models" / "wish_torn" / "1" / "words.txt"
        torn.rename(torn.with_suffix(".away"))
        wait_until(lambda: who()[0] == "wish_whole")
        gone = r"left out: wish_torn/1, whose file words\.txt is gone \(put it back"
        assert re.search(gone, who()[1])
        with pytest.raises(BadOption, match=rf"nearest: 0\.\d+ by wish_whole/1.*{gone}"):
            who(ml_udf_min_accuracy=0.9)
        with pytest.raises(BadOption, match=gone):
            client.put("/v1/functions/wish_no", {"wants": {"purpose": "wish_whole", "min_accuracy": 0.9}})
        (decided,) = client.get("/v1/functions/wish_files")["decisions"]
        assert [bool(each["lacks"]) for each in decided["candidates"]] == [True, False]
        torn.with_suffix(".away").rename(torn)
        wait_until(lambda: who()[0] == "wish_torn")
        torn.unlink()
        wait_until(lambda: who()[0] == "wish_whole")
        server.deploy(folder)  # registered anew
        wait_until(lambda: who()[0] == "wish_torn")
