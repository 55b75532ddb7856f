"""Whatever happens to functions and files, a kept answer is one that a fresh computation would give.

A real server with real networks; what is done to it is drawn. What each network answers for each picture is
asked beforehand, of functions that keep nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from PIL import Image

from tests.inference_server import InferenceServer, inference_server
from tests.models import image_model

NETWORKS, PICTURES = 3, 6
FILES = ("a.png", "b.png", "c.png", "team/a.png", "team/b.png")
ADMIN = "a-token-for-the-tests-0123456789"
NEAR = 1e-4  # what the place in a batch may change of a score
TICK_S = 0.13  # after that a file's stamp tells it from what it was

files = st.sampled_from(FILES)
pictures = st.integers(0, PICTURES - 1)
networks = st.integers(0, NETWORKS - 1)
callers = st.sampled_from(("everybody", "team"))
hows = st.sampled_from(("over it", "over it, its time set back", "renamed onto it"))
outputs = st.sampled_from((("scores",), ("label", "scores"), ("scores", "confidence")))
classes = st.sampled_from(("interactive", "bulk"))
asks = st.tuples(st.lists(files, min_size=1, max_size=8), callers, outputs, classes)
Scores = np.ndarray[Any, Any]
Asked = tuple[list[str], str, tuple[str, ...], str]  # files, caller, outputs, class


@dataclass
class Site:
    server: InferenceServer
    photos: Path
    made: Path  # the pictures, by number
    secrets: dict[str, str]
    expected: dict[tuple[int, int], Scores] = field(default_factory=dict)  # of a network, for a picture
    numbers: Iterator[int] = field(default_factory=count)
    cached_rows: int = 0

    def put(self, function: str, network: int, **fields: Any) -> None:
        with self.server.client() as client:
            client.put(f"/v1/functions/{function}", {"models": [f"net{network}"], **fields})

    def rows_of(
        self, function: str, paths: Sequence[Path], caller: str, names: Sequence[str], row_class: str
    ) -> list[Scores | str]:
        """Of each path its scores, or the code of its error."""
        body = {
            "parameters": {"ml_udf_class": row_class},
            "inputs": [
                {
                    "name": "image_path",
                    "shape": [len(paths)],
                    "datatype": "BYTES",
                    "data": list(map(str, paths)),
                }
            ],
            "outputs": [{"name": name} for name in (*names, "error")],
        }
        url = f"{self.server.url}/v2/models/{function}/infer"
        headers = {"Authorization": f"Bearer {self.secrets[caller]}"}
        answer = httpx.post(url, json=body, headers=headers, timeout=60.0)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        self.cached_rows += told.get("parameters", {}).get("ml_udf_cached_rows", 0)
        columns = {each["name"]: each["data"] for each in told["outputs"]}
        scores = np.array(columns["scores"]).reshape(len(paths), -1)
        return [error.partition(":")[0] or row for row, error in zip(scores, columns["error"], strict=True)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("kept")
    photos, made = folder / "photos", folder / "pictures"
    (photos / "team").mkdir(parents=True)
    made.mkdir()
    for number in range(PICTURES):
        # All of one size in bytes: neither that nor the times that can be set tell them apart.
        colour = (40 * number, 255 - 40 * number, 97 * number % 256)
        Image.new("RGB", (40, 40), colour).save(made / f"{number}.png", compress_level=0)
    (folder / "token").write_text(ADMIN)
    (folder / "token").chmod(0o600)
    flags = ["--workers=1", f"--token-file={folder / 'token'}", "--answer-cache-bytes=4194304"]
    with inference_server(
        folder / "home", media_roots=[photos, made], flags=flags, connect={"token": ADMIN}
    ) as server:
        with server.client() as client:
            narrow = {"name": "team", "scopes": ["infer"], "media_roots": [str(photos / "team")]}
            secret = client.post("/v1/tokens", narrow)["secret"]
        one = Site(server, photos, made, {"everybody": ADMIN, "team": secret})
        for network in range(NETWORKS):
            server.deploy(image_model(folder / "models", f"net{network}", seed=network + 1))
            one.put("fresh", network, answer_cache=False)
            paths = [made / f"{number}.png" for number in range(PICTURES)]
            for number, scores in enumerate(one.rows_of("fresh", paths, "everybody", ("scores",), "bulk")):
                assert not isinstance(scores, str), scores
                one.expected[network, number] = scores
        yield one


class Life(RuleBasedStateMachine):
    """One function, some files, and what is done to them."""

    site: ClassVar[Site]

    @initialize(network=networks, drawn=st.lists(pictures, min_size=len(FILES), max_size=len(FILES)))
    def begin(self, network: int, drawn: list[int]) -> None:
        self.function = f"udf_{next(self.site.numbers)}"
        self.network, self.before = network, network  # that is deployed, and that was before
        self.picture: dict[str, int | None] = {}
        self.site.put(self.function, network)
        for name, picture in zip(FILES, drawn, strict=True):
            self.write(name, picture, "over it")
        time.sleep(TICK_S)

    @rule(name=files, picture=pictures, how=hows)
    def write(self, name: str, picture: int, how: str) -> None:
        path, data = self.site.photos / name, (self.site.made / f"{picture}.png").read_bytes()
        before = path.stat() if path.exists() else None
        if how == "renamed onto it":
            new = path.with_suffix(".new")
            new.write_bytes(data)
            new.rename(path)
        else:
            path.write_bytes(data)
        if how == "over it, its time set back" and before is not None:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        self.picture[name] = picture

    @rule(name=files)
    def delete(self, name: str) -> None:
        (self.site.photos / name).unlink(missing_ok=True)
        self.picture[name] = None

    @rule(network=networks)
    def deploy(self, network: int) -> None:
        self.site.put(self.function, network)
        self.network, self.before = network, self.network

    @rule()
    def roll_back(self) -> None:
        with self.site.server.client() as client:
            with contextlib.suppress(Exception):  # there is nothing before the first
                client.post(f"/v1/functions/{self.function}/rollback", {})
            (name,) = client.get(f"/v1/functions/{self.function}")["models"]
        self.network, self.before = int(name.removeprefix("net")), self.network

    @rule()
    def rest(self) -> None:
        time.sleep(TICK_S)

    @rule(asked=asks)
    def ask(self, asked: Asked) -> None:
        self.check(asked, self.answered(asked))

    @rule(asked=asks)
    def ask_twice_what_rests(self, asked: Asked) -> None:
        time.sleep(TICK_S)
        for _ in range(2):
            self.check(asked, self.answered(asked))

    @rule(all_asked=st.lists(asks, min_size=2, max_size=6))
    def ask_at_once(self, all_asked: list[Asked]) -> None:
        with ThreadPoolExecutor(len(all_asked)) as threads:
            for asked, found in zip(all_asked, threads.map(self.answered, all_asked), strict=True):
                self.check(asked, found)

    @rule(all_asked=st.lists(asks, min_size=1, max_size=4), name=files, picture=pictures)
    def replace_while_they_ask(self, all_asked: list[Asked], name: str, picture: int) -> None:
        before = self.picture[name]
        with ThreadPoolExecutor(len(all_asked)) as threads:
            begun = [threads.submit(self.answered, asked) for asked in all_asked]
            self.write(name, picture, "renamed onto it")  # half a file is nobody's answer
            for asked, future in zip(all_asked, begun, strict=True):
                self.check(asked, future.result(), {name: (before, picture)})
        everybody = ([name] * 2, "everybody", ("scores",), "interactive")
        self.check(everybody, self.answered(everybody))

    @rule(all_asked=st.lists(asks, min_size=1, max_size=4), network=networks)
    def deploy_while_they_ask(self, all_asked: list[Asked], network: int) -> None:
        before = self.network
        with ThreadPoolExecutor(len(all_asked)) as threads:
            begun = [threads.submit(self.answered, asked) for asked in all_asked]
            self.deploy(network)
            for asked, future in zip(all_asked, begun, strict=True):
                self.check(asked, future.result(), networks={before, network})
        everybody = (list(FILES), "everybody", ("scores",), "interactive")
        self.check(everybody, self.answered(everybody))

    # ── what is right ───────────────────────────────────────────────────────────────────────────────

    def answered(self, asked: Asked) -> list[Scores | str]:
        names, caller, columns, row_class = asked
        paths = [self.site.photos / name for name in names]
        return self.site.rows_of(self.function, paths, caller, columns, row_class)

    def check(
        self,
        asked: Asked,
        found: Sequence[Scores | str],
        either: dict[str, tuple[int | None, int | None]] | None = None,
        networks: set[int] | None = None,
    ) -> None:
        """either: the pictures that a file may have had meanwhile. networks: that may have answered."""
        for name, answer in zip(asked[0], found, strict=True):
            allowed = (either or {}).get(name, (self.picture[name],))
            assert any(
                self._is(answer, name, asked[1], picture, network)
                for picture in allowed
                for network in networks or {self.network}
            ), (name, asked, allowed, answer)

    def _is(self, answer: Scores | str, name: str, caller: str, picture: int | None, network: int) -> bool:
        if caller == "team" and not name.startswith("team/"):
            return isinstance(answer, str) and answer == "input_forbidden"
        if picture is None:
            return isinstance(answer, str) and answer == "input_not_found"
        right = self.site.expected[network, picture]
        return not isinstance(answer, str) and bool(np.abs(answer - right).max() < NEAR)


def test_what_networks_say_of_pictures_tells_them_all_apart(site: Site) -> None:
    """Else a stale answer could not be seen."""
    all_scores = list(site.expected.values())
    for place, one in enumerate(all_scores):
        for other in all_scores[:place]:
            assert np.abs(one - other).max() > 10 * NEAR


def test_no_answer_is_one_that_a_fresh_computation_would_not_give(site: Site) -> None:
    examples = int(os.environ.get("ML_UDF_EXAMPLES", "6"))
    checks = settings(
        max_examples=examples, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )
    Life.site = site
    run_state_machine_as_test(Life, settings=checks)
    assert site.cached_rows > 10 * examples  # or nothing was tried
