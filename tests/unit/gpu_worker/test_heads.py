"""Heads on a frozen backbone: learnt on embeddings that are computed once, served over a backbone that is
loaded once and passed once for all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from gpu_worker.device import find_device
from gpu_worker.engine import Engine
from gpu_worker.errors import BadRequest, Cancelled, ModelUnusable, RowFault
from gpu_worker.model_files.backbone import backbone_sha256
from gpu_worker.model_files.manifest import Manifest, read_manifest
from gpu_worker.networks import backbones
from gpu_worker.networks.backbones import SharedBackbone
from gpu_worker.networks.head_network import HeadNetwork
from gpu_worker.networks.loader import load_network, warm_up, weights_bytes
from gpu_worker.pipeline import recent_rows
from gpu_worker.pipeline.recent_rows import RecentRows
from gpu_worker.train.learner import Objective
from gpu_worker.train.learners import Learners
from gpu_worker.train.linear_heads import head_made
from gpu_worker.wire.protocol import BatchPart
from tests.models import write_manifest
from tests.task_models import eyes_model, words_model

Engines = Callable[..., Engine]
CPU = find_device("cpu", threads=1)
ROWS = 100
COLOURS = ["blue", "green", "red"]
TASKS = ["image-classification", "image-multilabel", "image-regression"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of one to three bright colours, snapshots of each task, and a backbone that sees colours."""
    folder = tmp_path_factory.mktemp("heads")
    random = np.random.default_rng(0)
    paths, bright = [], []
    for number in range(ROWS):
        pixels = random.integers(0, 60, (16, 16, 3))
        colours = [at for at in range(3) if number >> at & 1] or [number % 3]
        pixels[:, :, colours] += 120
        paths.append(str(folder / f"{number}.png"))
        Image.fromarray(pixels.astype(np.uint8)).save(paths[-1])
        bright.append([["red", "green", "blue"][at] for at in colours])
    splits = [("train", "train", "train", "validation", "test")[at % 5] for at in range(ROWS)]
    targets: dict[str, list[Any]] = {
        "image-classification": ["one" if len(each) == 1 else "many" for each in bright],
        "image-multilabel": [json.dumps(sorted(each)) for each in bright],
        "image-regression": [float(len(each)) for each in bright],
    }
    for task, column in targets.items():
        table = pa.table({"input": paths, "target": column, "split": splits})
        (folder / task).mkdir()
        pq.write_table(table, folder / task / "s.parquet")
    eyes_model(folder / "models")
    return folder


def objective_of(task: str) -> Objective:
    classes = {"image-classification": ["many", "one"], "image-multilabel": COLOURS}
    return Objective.of(task, classes.get(task, []))


def named(home: Path, name: str = "eyes", version: int = 1) -> dict[str, Any]:
    directory = home / "models" / name / str(version)
    manifest = json.loads((directory / "model.json").read_text())
    sha256 = backbone_sha256(manifest)
    return {"name": name, "version": version, "sha256": sha256, "directory": str(directory)}


def learners(read: Callable[[bytes], bytes] | None = None) -> Learners:
    return Learners("cpu", read or (lambda path: Path(path.decode()).read_bytes()), 1 << 20, False)


def spec(home: Path, architecture: str) -> dict[str, Any]:
    return {"architecture": architecture, "epochs": 3, "seed": 1, "backbone": named(home)}


def learnt(home: Path, task: str, path: Path, architecture: str = "") -> str:
    first = "ridge" if task.endswith("regression") else "logistic_regression"
    learner = learners().begin(
        spec(home, architecture or first), str(home / task / "s.parquet"), objective_of(task), "", 0
    )
    learner.learn(lambda: False)
    learner.write(str(path), best=True)
    return str(path)


def head(home: Path, task: str, name: str, weights: str, backbone: str = "eyes") -> Path:
    """A head's folder beside its backbone, as a deployment registers it."""
    below = json.loads((home / "models" / backbone / "1" / "model.json").read_text())
    on = named(home, backbone)
    folder = write_manifest(
        home / "models",
        name,
        task=task,
        runtime="head",
        architecture="logistic_regression",
        classes=list(objective_of(task).classes),
        input=below["input"],
        weights="model.onnx",
        backbone={field: on[field] for field in ("name", "version", "sha256")},
    )
    shutil.copyfile(weights, folder / "model.onnx")
    return folder


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of every pass of a backbone, its rows; passes of tiny ones are worth keeping."""
    monkeypatch.setattr(recent_rows, "_WORTH_S", 0.0)
    counts: list[int] = []
    features = SharedBackbone.features

    def counted(self: SharedBackbone, inputs: Any, is_cancelled: Any) -> Any:
        counts.append(len(inputs))
        return features(self, inputs, is_cancelled)

    monkeypatch.setattr(SharedBackbone, "features", counted)
    return counts


@pytest.mark.parametrize("task", TASKS)
def test_a_head_is_served_as_it_was_learnt(home: Path, task: str, tmp_path: Path, engines: Engines):
    weights = learnt(home, task, tmp_path / "head.onnx")
    found = learners().evaluate(
        spec(home, "any"), str(home / task / "s.parquet"), objective_of(task), weights, "test"
    )
    assert found is not None
    score = objective_of(task).metric.of(found.predictions, found.targets)
    assert score > 0.9 if task != "image-regression" else score < 0.4, "RMSE of numbers from 1 to 3"
    engine = engines(media_roots=(str(home),))
    engine.load("h", str(head(home, task, f"{task}-head", weights)))
    rows = pq.read_table(home / task / "s.parquet", filters=[("split", "=", "test")])["input"].to_pylist()
    outputs = ["value"] if task == "image-regression" else ["scores"]
    answer = engine.infer(["h"], "path", [row.encode() for row in rows], outputs=outputs)
    (column,) = answer.members[0].columns
    assert not isinstance(column.data, list)
    kind = "<f8" if task == "image-regression" else "<f4"
    served = np.frombuffer(column.data, kind).reshape(len(rows), -1).astype(np.float64)
    np.testing.assert_allclose(served, found.predictions, atol=1e-5)


def test_embeddings_are_computed_once_for_every_head_of_a_snapshot(home: Path, tmp_path: Path):
    snapshot = tmp_path / "s.parquet"
    shutil.copyfile(home / "image-regression" / "s.parquet", snapshot)
    read: list[bytes] = []

    def counting(path: bytes) -> bytes:
        read.append(path)
        return Path(path.decode()).read_bytes()

    objective = objective_of("image-regression")
    for architecture in ("ridge", "hist_gradient_boosting", "ridge"):
        ours = learners(counting)  # as another process, with nothing in memory
        given = spec(home, architecture)
        ours.load(given, str(snapshot), objective, lambda: False)
        ours.begin(given, str(snapshot), objective, "", 0).learn(lambda: False)
    assert len(read) == ROWS


def test_a_computation_that_is_stopped_leaves_nothing_and_is_begun_again(home: Path, tmp_path: Path):
    snapshot = tmp_path / "s.parquet"
    shutil.copyfile(home / "image-regression" / "s.parquet", snapshot)
    objective, given = objective_of("image-regression"), spec(home, "ridge")
    looks: Iterator[bool] = iter([False, True])
    with pytest.raises(Cancelled):
        learners().load(given, str(snapshot), objective, lambda: next(looks))
    assert list((tmp_path / ".arrays").iterdir()) == []
    learners().load(given, str(snapshot), objective, lambda: False)
    assert len(list((tmp_path / ".arrays").iterdir())) == 1


def test_a_process_that_is_killed_in_the_middle_costs_its_computation_alone(home: Path, tmp_path: Path):
    snapshot = tmp_path / "s.parquet"
    shutil.copyfile(home / "image-regression" / "s.parquet", snapshot)
    objective, given = objective_of("image-regression"), spec(home, "ridge")
    read: list[bytes] = []

    def read_some(path: bytes) -> bytes:
        read.append(path)
        if len(read) > 40:
            os.kill(os.getpid(), signal.SIGKILL)
        return Path(path.decode()).read_bytes()

    child = os.fork()
    if not child:
        learners(read_some).load(given, str(snapshot), objective, lambda: False)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [path.name[:8] for path in (tmp_path / ".arrays").iterdir()] == [".coming-"]
    learner = learners().begin(given, str(snapshot), objective, "", 0)
    assert learner.learn(lambda: False).score.value < 0.4


def test_photos_that_vanished_are_skipped_and_too_many_of_them_are_said(home: Path, tmp_path: Path):
    snapshot = tmp_path / "s.parquet"
    shutil.copyfile(home / "image-regression" / "s.parquet", snapshot)
    objective = objective_of("image-regression")

    def without(*lost: str) -> Learners:
        def read(path: bytes) -> bytes:
            if Path(path.decode()).name in lost:
                raise RowFault("input_not_found", "it is gone")
            return Path(path.decode()).read_bytes()

        return learners(read)

    with pytest.raises(ValueError, match=r"3 rows .*/0\.png: it is gone; refresh the dataset"):
        without("0.png", "1.png", "7.png").begin(spec(home, "ridge"), str(snapshot), objective, "", 0)
    learner = without("3.png").begin(spec(home, "ridge"), str(snapshot), objective, "", 0)
    assert learner.skipped == 1
    assert learner.learn(lambda: False).score.value < 0.5


def test_heads_share_one_backbone_and_its_pass(
    home: Path, tmp_path: Path, engines: Engines, passes: list[int], monkeypatch: pytest.MonkeyPatch
):
    below = eyes_model(home / "models", "shared")
    folders = [
        head(home, task, f"on-{task}", learnt(home, task, tmp_path / f"{task}.onnx"), "shared")
        for task in ("image-classification", "image-regression")
    ]
    loads: list[str] = []

    def counting(manifest: Manifest, *arguments: Any, **options: Any) -> Any:
        loads.append(manifest.name)
        return load_network(manifest, *arguments, **options)

    monkeypatch.setattr(backbones, "load_network", counting)
    engine = engines(media_roots=(str(home),))
    engine.load("a", str(folders[0]))
    alone = engine.used_bytes
    engine.load("b", str(folders[1]))
    assert loads == ["shared"], "the weights are there once"
    own = sum((folder / "model.onnx").stat().st_size for folder in folders)
    backbone = (below / "model.onnx").stat().st_size
    assert engine.used_bytes - own - backbone in (0, 1), "they count once"
    assert alone - backbone == (folders[0] / "model.onnx").stat().st_size
    rows = [f"{home}/{number}.png".encode() for number in range(10)] + [b"/nowhere.png"]
    both = engine.infer(["a", "b"], "path", rows)
    assert sum(passes) == 10, "each row that can be read passes once"
    for place, name in enumerate(("a", "b")):
        one = engine.infer([name], "path", rows)
        assert one.members[0].columns == both.members[place].columns
    passes.clear()
    parts = [BatchPart(4, ["scores"]), BatchPart(7, ["value"])]
    apart = engine.answer(engine.begin(["a", "b"], "path", rows, parts=parts))
    assert sum(passes) == 10, "nor where each is asked of its own rows"
    assert [[column.rows for column in each.columns] for each in apart.members] == [[4], [7]]
    assert [error.index for error in apart.errors] == [10]
    one = engine.infer(["a"], "path", rows[:4], outputs=["scores"])
    assert apart.members[0].columns == one.members[0].columns
    one = engine.infer(["b"], "path", rows[4:], outputs=["value"])
    assert apart.members[1].columns == one.members[0].columns
    for bad in ([BatchPart(11)], [BatchPart(4), BatchPart(4)], [BatchPart(-1), BatchPart(12)]):
        with pytest.raises(BadRequest, match="parts"):
            engine.begin(["a", "b"], "path", rows, parts=bad)
    engine.unload("a")
    assert engine.infer(["b"], "path", rows[:1]).errors == []
    engine.unload("b")
    engine.load("a", str(folders[0]))
    assert loads == ["shared", "shared"], "the last head has taken it along"


@pytest.mark.parametrize("decoding_is_worth_keeping", [True, False])
def test_heads_that_are_asked_of_rows_one_after_the_other_pass_them_once(
    home: Path,
    tmp_path: Path,
    engines: Engines,
    passes: list[int],
    decoding_is_worth_keeping: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    if not decoding_is_worth_keeping:
        monkeypatch.setattr(RecentRows, "is_worth_it", lambda _, kind: kind != 0)
    tasks = ("image-classification", "image-regression")
    folders = [head(home, task, f"again-{task}", learnt(home, task, tmp_path / task)) for task in tasks]
    keeping, other = (engines(media_roots=(str(home),), recent_bytes=kept) for kept in (32 << 20, 0))
    for engine in (keeping, other):
        for name, folder in zip("ab", folders, strict=True):
            engine.load(name, str(folder))
    page = [f"{home}/{number}.png".encode() for number in range(30)]
    for first in (0, 10):
        rows = [*page[first : first + 10], b"/nowhere.png"]
        for name in "ab":
            passes.clear()
            found = keeping.infer([name], "path", rows)
            passed = sum(passes)
            expected = other.infer([name], "path", rows)
            assert found.members[0].columns == expected.members[0].columns
            assert [error.index for error in found.errors] == [10]
            is_spared = name == "b" and first == 10
            assert (passed, found.spared_rows) == ((0, 10) if is_spared else (10, 0))
            assert found.work_s > 0
            assert found.members_s[0][0] > 0, "as if the backbone had passed them"
    passes.clear()
    half = keeping.infer(["b"], "path", [*page[15:20], *page[20:25]])
    assert sum(passes) == 5
    whole = other.infer(["b"], "path", [*page[15:20], *page[20:25]])
    assert half.members[0].columns == whole.members[0].columns


def test_a_head_without_its_backbone_says_so(home: Path, tmp_path: Path):
    weights = learnt(home, "image-classification", tmp_path / "head.onnx")
    eyes_model(home / "models", "lost")
    folder = head(home, "image-classification", "headless", weights, "lost")
    manifest = read_manifest(str(folder))
    assert weights_bytes(manifest) > (folder / "model.onnx").stat().st_size
    eyes_model(home / "models", "lost", times=2.0)
    with pytest.raises(ModelUnusable, match=r"lost/1 .* was replaced; put the former one back, or train"):
        load_network(manifest, CPU)
    shutil.rmtree(home / "models" / "lost")
    with pytest.raises(ModelUnusable, match=r"backbone lost/1 is not there .* import it again"):
        load_network(manifest, CPU)
    with pytest.raises(ModelUnusable, match="is not there"):
        weights_bytes(manifest)


def test_a_damaged_backbone_is_not_served(home: Path, tmp_path: Path):
    weights = learnt(home, "image-classification", tmp_path / "head.onnx")
    below = eyes_model(home / "models", "damaged")
    folder = head(home, "image-classification", "on-damaged", weights, "damaged")
    (below / "model.onnx").write_bytes(b"x" * 100)
    with pytest.raises(ModelUnusable, match="have SHA-256"):
        load_network(read_manifest(str(folder)), CPU)


def test_what_is_no_backbone_is_refused(home: Path, tmp_path: Path):
    weights = learnt(home, "image-classification", tmp_path / "head.onnx")
    on_head = head(home, "image-classification", "first", weights)
    given = spec(home, "logistic_regression") | {"backbone": named(home, "first")}
    arguments = (
        str(home / "image-classification" / "s.parquet"),
        objective_of("image-classification"),
        "",
        0,
    )
    with pytest.raises(ModelUnusable, match="first/1 is a head itself"):
        learners().begin(given, *arguments)
    eyes_model(home / "models", "blind", task="image-regression", features={})
    given["backbone"] = named(home, "blind")
    with pytest.raises(ModelUnusable, match="blind has no features, and no head can stand on it"):
        learners().begin(given, *arguments)
    with pytest.raises(BadRequest, match=r"'backbone\.sha256' must be"):
        learners().begin({**given, "backbone": {**named(home), "sha256": "?"}}, *arguments)
    wide = read_manifest(str(on_head))
    assert wide.backbone is not None
    words = words_model(home / "models", ["a", "b"])
    on_words = replace(wide, backbone=replace(wide.backbone, **_of_words(words)))
    with pytest.raises(ModelUnusable, match="its 'input' is not that of its backbone"):
        load_network(on_words, CPU)


def _of_words(folder: Path) -> dict[str, Any]:
    return {"name": "words", "sha256": backbone_sha256(json.loads((folder / "model.json").read_text()))}


def test_a_row_without_features_has_no_answer_and_spoils_no_other(home: Path, tmp_path: Path):
    weights = learnt(home, "image-classification", tmp_path / "head.onnx", "hist_gradient_boosting")
    manifest = read_manifest(str(head(home, "image-classification", "trees", weights)))
    network = load_network(manifest, CPU)
    assert isinstance(network, HeadNetwork)
    warm_up(network, manifest)
    features = np.array([[0.5, 0.1, 0.1], [np.nan, 0.1, 0.1]], np.float32)
    found = network.of_features(features, "scores")
    assert found[0].sum() == pytest.approx(1.0)
    assert np.isnan(found[1]).all(), "trees would take it for a missing value"
    assert network.of_features(features, "features") is features


def mood_head(tmp_path: Path) -> Path:
    """A head that tells good from bad, on the `words` of `models`."""
    texts = [f"{'good' if at % 2 else 'bad'} tea {at}" for at in range(50)]
    splits = [("train", "train", "train", "validation", "test")[at % 5] for at in range(50)]
    targets = [float(at % 2) for at in range(50)]
    pq.write_table(pa.table({"input": texts, "target": targets, "split": splits}), tmp_path / "s.parquet")
    given = {"architecture": "ridge", "epochs": 1, "alpha": 0.1, "backbone": named(tmp_path, "words")}
    learner = learners().begin(given, str(tmp_path / "s.parquet"), Objective.of("text-regression", []), "", 0)
    assert learner.learn(lambda: False).score.value < 0.05
    learner.write(str(tmp_path / "head.onnx"), best=True)
    folder = write_manifest(
        tmp_path / "models",
        "mood",
        task="text-regression",
        runtime="head",
        architecture="ridge",
        input=json.loads((tmp_path / "models" / "words" / "1" / "model.json").read_text())["input"],
        weights="model.onnx",
        backbone={key: value for key, value in named(tmp_path, "words").items() if key != "directory"},
    )
    shutil.copyfile(tmp_path / "head.onnx", folder / "model.onnx")
    return folder


def test_texts_have_heads_too_and_pass_once(tmp_path: Path, engines: Engines, passes: list[int]):
    pytest.importorskip("tokenizers")
    words_model(tmp_path / "models", ["good", "bad", "tea"])
    folder = mood_head(tmp_path)
    engine = engines(recent_bytes=32 << 20)
    engine.load("mood", str(folder))
    passes.clear()
    rows = [f"{'good' if at % 2 else 'bad'} tea {at}".encode() for at in range(20)]
    answers = [engine.infer(["mood"], "text", rows) for _ in range(3)]
    assert [sum(passes)] + [answer.spared_rows for answer in answers] == [40, 0, 0, 20]
    assert answers[0].members[0].columns == answers[2].members[0].columns


def test_a_backbone_that_is_asked_by_its_own_name_shares_its_pass_with_heads(
    tmp_path: Path, engines: Engines, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("tokenizers")
    from gpu_worker.networks.static_embedding import StaticEmbedding

    monkeypatch.setattr(recent_rows, "_WORTH_S", 0.0)
    passed: list[int] = []
    features = StaticEmbedding.features

    def counted(self: StaticEmbedding, inputs: Any, is_cancelled: Any) -> Any:
        passed.append(len(inputs))
        return features(self, inputs, is_cancelled)

    monkeypatch.setattr(StaticEmbedding, "features", counted)
    words = words_model(tmp_path / "models", ["good", "bad", "tea"])
    mood = mood_head(tmp_path)
    keeping, other = (engines(recent_bytes=kept) for kept in (32 << 20, 0))

    def rows_passed(name: str, rows: list[bytes]) -> int:
        """By the engine that keeps some, whose answer must be the other's."""
        passed.clear()
        found = keeping.infer([name], "text", rows)
        count = sum(passed)
        assert found.members[0].columns == other.infer([name], "text", rows).members[0].columns
        assert found.spared_rows == len(rows) - count
        return count

    def page(number: int) -> list[bytes]:
        return [f"good {'tea ' * at} {number}".encode() for at in range(20)]

    for engine in (keeping, other):
        engine.load("words", str(words))
    assert [rows_passed("words", page(0)) for _ in range(3)] == [20, 20, 20], "nobody else reads them"
    for engine in (keeping, other):
        engine.load("mood", str(mood))
    asked = [rows_passed(name, page(number)) for number in (1, 2, 3) for name in ("words", "mood")]
    assert asked == [20, 20, 20, 0, 20, 0]
    assert [rows_passed(name, page(4)) for name in ("mood", "words")] == [20, 0], "either way"
    passed.clear()
    rows = page(5)
    parts = [BatchPart(4, ["embedding"]), BatchPart(16, ["value"])]
    both = keeping.answer(keeping.begin(["words", "mood"], "text", rows, parts=parts))
    assert sum(passed) == 20
    for member, name, own in zip(both.members, ("words", "mood"), (rows[:4], rows[4:]), strict=True):
        assert member.columns == other.infer([name], "text", own).members[0].columns
    for engine in (keeping, other):
        engine.unload("mood")
    assert [rows_passed("words", page(6)) for _ in range(2)] == [20, 20]


def test_a_linear_head_is_that_of_scikit_learn():
    random = np.random.default_rng(0)
    numbers = random.normal(3.0, 1.0, (200, 5)).astype(np.float32) * np.array([1, 2, 0.5, 1, 0], np.float32)
    targets = (numbers[:, :1] + random.normal(0, 1, (200, 3)) > 3).astype(bool)
    ours, _ = head_made(
        "logistic_regression", 0, {"C": 0.5}, tells_numbers=False, objective=objective_of("image-multilabel")
    )
    for _ in range(5):
        ours.fit(numbers, targets)
    scaled = (numbers - numbers.mean(0)) / np.sqrt(numbers.var(0).mean())
    theirs = OneVsRestClassifier(LogisticRegression(C=0.5, max_iter=500)).fit(scaled, targets)
    np.testing.assert_allclose(ours.predict_proba(numbers), theirs.predict_proba(scaled), atol=1e-3)
    assert ours.has_converged
    with pytest.raises(ValueError, match="a linear model of image-regression"):
        head_made("ridge", 0, {"C": 1}, tells_numbers=True, objective=objective_of("image-regression"))
    with pytest.raises(ValueError, match="no head 'hist_gradient_boosting' that tells labels"):
        head_made(
            "hist_gradient_boosting", 0, {}, tells_numbers=False, objective=objective_of("image-multilabel")
        )


def test_labels_of_all_rows_or_of_none_are_known_to_be_so():
    numbers = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    targets = np.zeros((40, 3), bool)
    targets[:, 0], targets[:, 1] = True, numbers[:, 0] > 0
    head, _ = head_made(
        "logistic_regression", 0, {}, tells_numbers=False, objective=objective_of("image-multilabel")
    )
    head.fit(numbers, targets)
    said = head.predict_proba(numbers)
    assert said[:, 0].min() > 0.95
    assert said[:, 2].max() < 0.05
    assert ((said[:, 1] > 0.5) == targets[:, 1]).mean() > 0.95
