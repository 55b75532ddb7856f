"""Owners and visibility on real servers: who makes a thing owns it, shares it, and gives it away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from typer.testing import CliRunner

from ml_udf.cli.app import app
from tests.contract.oip_wire import infer_body
from tests.inference_server import InferenceServer, inference_server
from tests.models import hashing_model, image_model
from tests.waiting import wait_until

pytestmark = pytest.mark.security

ADMIN = "a-token-for-the-tests-0123456789"
SCOPES = ["infer", "train", "deploy"]


class Site:
    """A server, and tokens by their names."""

    def __init__(self, server: InferenceServer) -> None:
        self.server = server
        self.tokens = {"admin": ADMIN}

    def ask(self, who: str, method: str, path: str, body: Any = None) -> httpx.Response:  # JSON
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        return httpx.request(method, self.server.url + path, headers=headers, json=body, timeout=60)

    def told(self, who: str, method: str, path: str, body: Any = None) -> Any:  # JSON
        reply = self.ask(who, method, path, body)
        assert reply.status_code < 300, (who, method, path, reply.text)
        return reply.json()

    def join(self, name: str, **more: object) -> None:
        made = self.told("admin", "POST", "/v1/tokens", {"name": name, "scopes": SCOPES, **more})
        self.tokens[name] = made["secret"]

    def sees(self, who: str, function: str) -> bool:
        listed = [each["name"] for each in self.told(who, "GET", "/v1/functions")["functions"]]
        status = self.ask(who, "POST", f"/v2/models/{function}/infer", infer_body("x")).status_code
        assert (status == 200) is (function in listed)
        return function in listed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("visibility")
    (made / "token").write_text(ADMIN)
    return made


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[Site]:
    flags = [f"--token-file={folder / 'token'}"]
    with inference_server(folder / "home", media_roots=[folder / "photos"], flags=flags) as server:
        made = Site(server)
        for name in ("ann", "ben"):
            made.join(name)
        model = hashing_model(folder, "words")
        made.told("ann", "POST", "/register", {"directory": str(model)})
        yield made


def test_who_makes_a_function_owns_it_and_says_who_sees_it(site: Site, folder: Path) -> None:
    told = site.told("ann", "PUT", "/v1/functions/udf_hers", {"models": ["words"]})
    assert (told["owner"], told["visibility"]) == ("ann", "public")
    assert site.sees("ben", "udf_hers")
    refused = site.ask("ben", "DELETE", "/v1/functions/udf_hers")
    assert refused.status_code == 403
    assert "is ann's" in refused.text
    (folder / "ann").write_text(site.tokens["ann"])
    asked = ["share", "function", "udf_hers", "-e", site.server.url, "--token-file", str(folder / "ann")]
    assert CliRunner().invoke(app, [*asked, "--private"]).exit_code == 0
    assert not site.sees("ben", "udf_hers")
    shared = CliRunner().invoke(app, [*asked, "--with", "ben"])
    assert shared.output.splitlines()[-1] == "function udf_hers: ann's, ben"
    assert site.sees("ben", "udf_hers")
    given = CliRunner().invoke(app, [*asked, "--owner", "ben"])
    assert given.exit_code == 1
    assert "admin" in given.output


def test_a_name_is_taken_without_a_word_of_whose_it_is_and_free_once_it_is_deleted(site: Site) -> None:
    site.told("ann", "PUT", "/v1/functions/udf_secret", {"models": ["words"]})
    site.told("ann", "PUT", "/v1/functions/udf_secret", {"models": ["words"], "slo_ms": 77})
    site.told("ann", "PUT", "/v1/functions/udf_secret/visibility", {"visibility": "private"})
    taken = site.ask("ben", "PUT", "/v1/functions/udf_secret", {"models": ["words"]})
    assert taken.json() == {"error": "forbidden: the name 'udf_secret' is taken; choose another"}
    site.told("ann", "DELETE", "/v1/functions/udf_secret")
    assert site.told("ben", "PUT", "/v1/functions/udf_secret", {"models": ["words"]})["owner"] == "ben"
    assert site.sees("ann", "udf_secret")
    # What had the name before is no past of it.
    assert site.ask("ben", "POST", "/v1/functions/udf_secret/rollback", {}).status_code == 404


def test_what_could_not_be_made_is_nobodys(site: Site) -> None:
    refused = site.ask("ann", "PUT", "/v1/functions/udf_none", {"models": ["words"], "policy": "no such"})
    assert refused.status_code == 400
    assert site.told("ben", "PUT", "/v1/functions/udf_none", {"models": ["words"]})["owner"] == "ben"


def test_members_that_a_user_does_not_see_are_told_of_by_their_places(site: Site, folder: Path) -> None:
    site.told("ann", "POST", "/register", {"directory": str(hashing_model(folder, "inner_words"))})
    site.told("ann", "PUT", "/v1/models/inner_words/visibility", {"visibility": "private"})
    body = {"models": ["words", "inner_words"]}
    missing = site.ask("ben", "PUT", "/v1/functions/udf_both", body)
    assert missing.status_code == 404
    assert missing.text == site.ask(
        "ben", "PUT", "/v1/functions/udf_both", {"models": ["never_words"]}
    ).text.replace("never_words", "inner_words")
    site.told("ann", "PUT", "/v1/functions/udf_both", body)
    assert site.told("ben", "GET", "/v1/functions/udf_both")["models"] == ["words", "member 2"]
    asked = infer_body("x", outputs=("label", "answered_by"))
    for who, said in (("ann", "words,inner_words"), ("ben", "words,member 2")):
        reply = site.told(who, "POST", "/v2/models/udf_both/infer", asked)
        assert reply["outputs"][1]["data"] == [said]


def test_a_wish_does_not_tell_what_its_users_do_not_see(site: Site) -> None:
    site.told("ann", "PUT", "/v1/functions/wished_words", {"models": ["words"]})
    site.told("ann", "PUT", "/v1/functions/wished_words/visibility", {"visibility": "private"})
    site.told("ann", "PUT", "/v1/functions/udf_wish", {"wants": {"purpose": "wished_words"}})
    assert site.told("ann", "GET", "/v1/functions/udf_wish")["wants"] == {"purpose": "wished_words"}
    assert site.told("ben", "GET", "/v1/functions/udf_wish")["wants"] == {"purpose": "a purpose"}
    for path in ("/v1/functions/udf_wish", "/v1/functions", "/v1/decisions", "/functions/udf_wish"):
        reply = site.ask("ben", "GET", path)
        assert (reply.status_code, "wished_words" in reply.text) == (200, False)


def test_a_hidden_members_name_is_not_found_by_guessing(site: Site, folder: Path) -> None:
    """What repeats a request's own words comes back as it was, whether a word is a hidden name or not."""
    names = ("guessed_words", "guessed_looks")
    for name, directory in (
        (names[0], hashing_model(folder, names[0])),
        (names[1], image_model(folder, names[1])),
    ):
        site.told("ann", "POST", "/register", {"directory": str(directory)})
        site.told("ann", "PUT", f"/v1/models/{name}/visibility", {"visibility": "private"})
        site.told("ann", "PUT", f"/v1/functions/udf_{name}", {"models": [name]})
        assert site.told("ben", "GET", f"/v1/functions/udf_{name}")["models"] == ["member 1"]
    wrong = infer_body("x")
    wrong["parameters"] = {"ml_udf_class": names[0], "timeout": names[0]}
    asked = site.ask("ben", "POST", f"/v2/models/udf_{names[0]}/infer", wrong)
    assert asked.status_code == 400
    assert names[0] in asked.text
    assert "member" not in asked.text
    paths = [f"{folder}/photos/{name}" for name in (names[1], "never_looks")]
    asked_paths = infer_body(*paths, name="image_path", outputs=("label", "error"))
    told = site.told("ben", "POST", f"/v2/models/udf_{names[1]}/infer", asked_paths)["outputs"][1]["data"]
    assert [path in error for path, error in zip(paths, told, strict=True)] == [True, True], told


def test_patterns_leave_a_token_the_functions_that_they_name(site: Site) -> None:
    site.join("kitchen", functions=["udf_food_*"])
    for name in ("udf_food_x", "udf_wine_x"):
        site.told("ann", "PUT", f"/v1/functions/{name}", {"models": ["words"]})
    assert site.sees("kitchen", "udf_food_x")
    assert not site.sees("kitchen", "udf_wine_x")
    index = site.told("kitchen", "POST", "/v2/repository/index", {})
    assert {each["name"] for each in index} == {"udf_food_x"}
    refused = site.ask("kitchen", "PUT", "/v1/functions/udf_wine_y", {"models": ["words"]})
    assert refused.status_code == 403


def test_a_token_reads_photos_below_its_own_media_roots_alone(site: Site, folder: Path) -> None:
    photos = folder / "photos"
    for team in ("red", "blue"):
        (photos / team).mkdir(parents=True)
        Image.new("RGB", (32, 32), team).save(photos / team / "1.jpg")
    (photos / "red" / "link.jpg").symlink_to(photos / "blue" / "1.jpg")
    site.told("ann", "POST", "/register", {"directory": str(image_model(folder, "looks"))})
    site.join("red", media_roots=[str(photos / "red")])
    paths = [
        str(photos / "red" / "1.jpg"),
        str(photos / "blue" / "1.jpg"),
        str(photos / "red" / "link.jpg"),
        "1.jpg",
    ]
    asked = infer_body(*paths, name="image_path", outputs=("label", "error"))
    for who, refused in (("ann", [False, False, False]), ("red", [False, True, True])):
        errors = site.told(who, "POST", "/v2/models/looks/infer", asked)["outputs"][1]["data"]
        assert [error.startswith("input_forbidden") for error in errors[:3]] == refused, (who, errors)


def test_the_rows_of_a_shared_dataset_are_answered_below_the_askers_media_roots_alone(
    site: Site, folder: Path
) -> None:
    """And their pictures are shown to nobody else."""
    rows = []
    for number in range(60):
        team = ("green", "grey")[number % 2]
        file = folder / "photos" / team / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (24, 24), (4 * number, 99, 20)).save(file)
        rows.append((str(file), team))
    site.told("ann", "POST", "/register", {"directory": str(image_model(folder, "shown"))})
    form = {"name": "albums", "query": "-", "target": "team", "key": "path", "input": "path"}
    form["task"] = "image-classification"
    upload = site.told("ann", "POST", "/v1/datasets/uploads", form)["upload"]
    part = [
        {"name": "path", "type": "string", "values": [path for path, _ in rows]},
        {"name": "team", "type": "string", "values": [team for _, team in rows]},
    ]
    site.told("ann", "PUT", f"/v1/datasets/uploads/{upload}/0", {"columns": part})
    snapshot = site.told("ann", "POST", f"/v1/datasets/uploads/{upload}/finish")["snapshot"]
    shared = {"shared_with": ["green"]}
    site.told("ann", "PUT", "/v1/datasets/albums/visibility", shared)
    site.join("green", media_roots=[str(folder / "photos" / "green")])
    answered = {}
    for who in ("ann", "green"):
        told = site.told(who, "POST", "/v1/datasets/albums/answers", {"function": "shown"})
        pairs = zip(told["targets"], told["answers"], strict=True)
        answered[who] = {team for team, answer in pairs if answer is not None}
    assert answered == {"ann": {"green", "grey"}, "green": {"green"}}
    for who, seen in (("ann", {200}), ("green", {200, 404})):
        pictures = f"/datasets/albums/pictures/{snapshot}"
        assert {site.ask(who, "GET", f"{pictures}/{row}").status_code for row in range(60)} == seen


def test_another_server_of_the_registry_follows_within_seconds(site: Site, folder: Path) -> None:
    site.told("ann", "PUT", "/v1/functions/udf_both_here", {"models": ["words"]})
    with ExitStack() as stack:
        flags = [
            f"--token-file={folder / 'token'}",
            f"--database-url=sqlite:///{folder / 'home' / 'registry.db'}",
        ]
        second = Site(stack.enter_context(inference_server(folder / "home", flags=flags)))
        second.tokens = site.tokens
        assert second.sees("ben", "udf_both_here")
        site.told("ann", "PUT", "/v1/functions/udf_both_here/visibility", {"visibility": "private"})
        infer = "/v2/models/udf_both_here/infer"
        wait_until(lambda: second.ask("ben", "POST", infer, infer_body("x")).status_code == 404, 10)
        assert not second.sees("ben", "udf_both_here")
        assert second.sees("ann", "udf_both_here")
