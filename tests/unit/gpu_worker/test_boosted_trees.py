"""XGBoost's and LightGBM's files answer as their libraries do; what cannot be answered is refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import Manifest, read_manifest
from gpu_worker.networks.boosted_trees import BoostedTrees
from gpu_worker.networks.coded_columns import CodedColumn, CodedColumns
from gpu_worker.networks.lightgbm_network import read_lightgbm
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.recognised import Recognised
from gpu_worker.networks.runtimes import RUNTIMES
from gpu_worker.networks.tree_checks import check_tree
from gpu_worker.networks.xgboost_network import read_xgboost
from tests.unit.gpu_worker.recognising import CPU, stored

pd = pytest.importorskip("pandas", reason="trees of categories are trained on pandas' frames")

ROWS = 120
NAMES = ["age", "plan", "active", "visits", "rank"]


@pytest.fixture(scope="module")
def frame() -> Any:
    """Numbers, some missing; texts, booleans, whole numbers, and categories that are numbers."""
    random = np.random.default_rng(0)
    age = random.normal(40, 10, ROWS)
    age[::7] = np.nan
    return pd.DataFrame(
        {
            "age": age,
            "plan": pd.Categorical(random.choice(["free", "pro", "team"], ROWS)),
            "active": random.random(ROWS) > 0.5,
            "visits": random.integers(0, 5, ROWS),
            "rank": pd.Categorical(random.choice([1, 2, 3], ROWS)),
        }
    )


@pytest.fixture(scope="module")
def rows(frame: Any) -> list[bytes]:
    """The same, as SQL sends them."""
    return [json.dumps(values).encode() for values in _plain(frame)]


def _plain(frame: Any) -> list[list[Any]]:
    columns = [frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame.columns]
    return [list(values) for values in zip(*columns, strict=True)]


@pytest.fixture(scope="module")
def targets(frame: Any) -> Any:
    return ((frame.age.fillna(30) > 38) ^ (frame.plan == "pro")).astype(int)


@pytest.fixture(scope="module")
def xgboost() -> Any:
    return pytest.importorskip("xgboost", reason="pip install xgboost-cpu")


@pytest.fixture(scope="module")
def lightgbm() -> Any:
    return pytest.importorskip("lightgbm", reason="pip install lightgbm")


def _answers(network: BoostedTrees, rows: list[bytes]) -> np.ndarray:
    return network.scores(rows, lambda: False)


@pytest.mark.parametrize("suffix", ["json", "ubj"])
@pytest.mark.parametrize("classes", [2, 3])
def test_xgboost_classifies_as_its_own_library_does(
    xgboost: Any, frame: Any, rows: list[bytes], targets: Any, tmp_path: Path, suffix: str, classes: int
) -> None:
    answers = targets + frame.active if classes == 3 else targets
    estimator = xgboost.XGBClassifier(n_estimators=8, enable_categorical=True).fit(frame, answers.astype(int))
    estimator.save_model(tmp_path / f"m.{suffix}")
    network = BoostedTrees(read_xgboost(str(tmp_path / f"m.{suffix}")))
    assert _answers(network, rows) == pytest.approx(estimator.predict_proba(frame), abs=1e-5)


def test_xgboost_says_several_labels_of_a_row(
    xgboost: Any, frame: Any, rows: list[bytes], targets: Any, tmp_path: Path
) -> None:
    both = np.stack([targets, frame.active], axis=1)
    estimator = xgboost.XGBClassifier(n_estimators=8, enable_categorical=True).fit(frame, both)
    estimator.save_model(tmp_path / "m.ubj")
    model = read_xgboost(str(tmp_path / "m.ubj"))
    assert (model.kind, model.outputs) == ("multilabel", 2)
    assert _answers(BoostedTrees(model), rows) == pytest.approx(estimator.predict_proba(frame), abs=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"objective": "count:poisson"},
        {"objective": "reg:absoluteerror"},
        {"booster": "dart"},
        {"objective": "reg:gamma", "num_parallel_tree": 2},
    ],
    ids=str,
)
def test_xgboost_regresses_as_its_own_library_does(
    xgboost: Any, frame: Any, rows: list[bytes], targets: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    estimator = xgboost.XGBRegressor(n_estimators=8, enable_categorical=True, **options)
    estimator.fit(frame, frame.visits + targets + 1).save_model(tmp_path / "m.ubj")
    network = BoostedTrees(read_xgboost(str(tmp_path / "m.ubj")))
    assert network.values_width == 1
    found = network.values(rows, lambda: False)
    assert found[:, 0] == pytest.approx(estimator.predict(frame), rel=1e-5)


def test_categories_that_xgboost_stores_cut_off_are_refused(
    xgboost: Any, targets: Any, tmp_path: Path
) -> None:
    plans = pd.DataFrame({"plan": pd.Categorical(["équipe", "pro"] * (ROWS // 2))})
    xgboost.XGBClassifier(n_estimators=2, enable_categorical=True).fit(plans, targets).save_model(
        tmp_path / "m.json"
    )
    with pytest.raises(ModelUnusable, match="column 'plan' have letters beyond ASCII"):
        read_xgboost(str(tmp_path / "m.json"))


def test_three_quantiles_are_a_value_and_its_interval(
    xgboost: Any, frame: Any, rows: list[bytes], targets: Any, tmp_path: Path
) -> None:
    estimator = xgboost.XGBRegressor(
        n_estimators=8,
        enable_categorical=True,
        objective="reg:quantileerror",
        quantile_alpha=[0.9, 0.1, 0.5],
    ).fit(frame, frame.visits + targets)
    estimator.save_model(tmp_path / "m.json")
    network = BoostedTrees(read_xgboost(str(tmp_path / "m.json")))
    assert network.values_width == 3
    high, low, value = estimator.predict(frame).T
    assert network.values(rows, lambda: False) == pytest.approx(np.stack([value, low, high], axis=1))


def test_a_file_of_scikit_learns_interface_answers_with_the_trees_up_to_its_best_iteration(
    xgboost: Any, frame: Any, rows: list[bytes], targets: Any, tmp_path: Path
) -> None:
    estimator = xgboost.XGBClassifier(n_estimators=200, enable_categorical=True, early_stopping_rounds=3)
    estimator.fit(frame[:80], targets[:80], eval_set=[(frame[80:], targets[80:])], verbose=False)
    assert estimator.best_iteration + 1 < estimator.get_booster().num_boosted_rounds()
    estimator.save_model(tmp_path / "m.ubj")
    network = BoostedTrees(read_xgboost(str(tmp_path / "m.ubj")))
    assert _answers(network, rows) == pytest.approx(estimator.predict_proba(frame), abs=1e-5)


def test_a_linear_booster_answers_too(xgboost: Any, frame: Any, targets: Any, tmp_path: Path) -> None:
    numbers = frame[["visits"]]
    estimator = xgboost.XGBRegressor(n_estimators=8, booster="gblinear").fit(numbers, targets)
    estimator.save_model(tmp_path / "m.ubj")
    network = BoostedTrees(read_xgboost(str(tmp_path / "m.ubj")))
    found = _answers(network, [json.dumps([value]).encode() for value in numbers.visits.tolist()])
    assert found[:, 0] == pytest.approx(estimator.predict(numbers), rel=1e-5)


@pytest.mark.parametrize("booster", ["gbtree", "gblinear"])
def test_a_number_beyond_float32_spoils_no_row_beside_it(xgboost: Any, tmp_path: Path, booster: str) -> None:
    numbers = np.arange(ROWS, dtype=float)[:, None]
    estimator = xgboost.XGBRegressor(n_estimators=8, booster=booster).fit(numbers, numbers[:, 0])
    estimator.save_model(tmp_path / "m.ubj")
    network = BoostedTrees(read_xgboost(str(tmp_path / "m.ubj")))
    alone = _answers(network, [b"[3.0]"])
    assert _answers(network, [b"[3.0]", b"[1e300]", b"[-1e39]"])[0] == alone[0]
    assert np.isfinite(_answers(network, [b"[1e300]"])).all()


@pytest.mark.parametrize("objective", ["rank:ndcg", "survival:cox", "binary:hinge"])
def test_an_objective_that_no_task_answers_is_refused_by_its_name(
    xgboost: Any, targets: Any, tmp_path: Path, objective: str
) -> None:
    data = xgboost.DMatrix(np.arange(ROWS, dtype=float)[:, None], targets)
    data.set_group([ROWS])
    xgboost.train({"objective": objective}, data, 2).save_model(tmp_path / "m.json")
    with pytest.raises(ModelUnusable, match=f"'{objective}', which cannot be served"):
        read_xgboost(str(tmp_path / "m.json"))


def test_several_values_of_a_row_are_refused(xgboost: Any, targets: Any, tmp_path: Path) -> None:
    data = xgboost.DMatrix(np.arange(ROWS, dtype=float)[:, None], np.stack([targets, targets], axis=1))
    xgboost.train({"objective": "reg:squarederror"}, data, 2).save_model(tmp_path / "m.json")
    with pytest.raises(ModelUnusable, match="2 values a row"):
        read_xgboost(str(tmp_path / "m.json"))


@pytest.mark.parametrize("classes", [1, 3])
def test_trees_of_several_answers_are_refused_by_their_name(
    xgboost: Any, targets: Any, tmp_path: Path, classes: int
) -> None:
    numbers = np.arange(ROWS, dtype=float)[:, None]
    answers = np.arange(ROWS) % classes if classes > 1 else np.stack([targets, targets], axis=1)
    estimator = xgboost.XGBClassifier(n_estimators=2, multi_strategy="multi_output_tree")
    estimator.fit(numbers, answers).save_model(tmp_path / "m.json")
    with pytest.raises(ModelUnusable, match=r"'multi_output_tree'.*train with 'one_output_per_tree'"):
        read_xgboost(str(tmp_path / "m.json"))


@pytest.fixture(scope="module")
def tree_text(xgboost: Any, targets: Any) -> str:
    data = xgboost.DMatrix(np.random.default_rng(1).random((ROWS, 2)), targets)
    return str(xgboost.train({"objective": "binary:logistic"}, data, 2).save_raw("json").decode())


@pytest.mark.security
@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (("trees", 0, "left_children", 0), 99_999, "names a child"),
        (("trees", 0, "right_children", 0), 0, "several parents"),
        (("trees", 0, "split_indices", 0), 77, "a column that the 2 columns"),
        (("tree_info", 0), 7, "an answer that"),
    ],
)
def test_arrays_that_lead_out_of_memory_are_refused(
    tree_text: str, tmp_path: Path, place: tuple[Any, ...], value: int, reason: str
) -> None:
    content = json.loads(tree_text)
    at = content["learner"]["gradient_booster"]["model"]
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    (tmp_path / "m.json").write_text(json.dumps(content))
    with pytest.raises(ModelUnusable, match=reason):
        read_xgboost(str(tmp_path / "m.json"))


@pytest.mark.parametrize("content", [b"", b"{}", b'{"learner":{}}', b"\x80\x04pickle", b"{L\x00\x00"])
def test_what_is_no_model_of_xgboost_is_refused(xgboost: Any, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.json").write_bytes(content)
    with pytest.raises(ModelUnusable, match="no model"):
        read_xgboost(str(tmp_path / "m.json"))


@pytest.mark.parametrize("objective", ["binary", "multiclass", "multiclassova"])
def test_lightgbm_classifies_as_its_own_library_does(
    lightgbm: Any, frame: Any, rows: list[bytes], targets: Any, tmp_path: Path, objective: str
) -> None:
    answers = targets if objective == "binary" else targets + frame.active
    estimator = lightgbm.LGBMClassifier(
        objective=objective, n_estimators=8, verbose=-1, min_child_samples=5
    ).fit(frame, answers)
    estimator.booster_.save_model(tmp_path / "m.txt")
    model = read_lightgbm(str(tmp_path / "m.txt"))
    assert [column.name for column in model.columns.columns] == NAMES
    assert _answers(BoostedTrees(model), rows) == pytest.approx(estimator.predict_proba(frame), abs=1e-6)


@pytest.mark.parametrize("objective", ["regression", "quantile", "poisson", "huber"])
def test_lightgbm_regresses_as_its_own_library_does(
    lightgbm: Any, frame: Any, rows: list[bytes], targets: Any, tmp_path: Path, objective: str
) -> None:
    estimator = lightgbm.LGBMRegressor(objective=objective, n_estimators=8, verbose=-1, min_child_samples=5)
    estimator.fit(frame, frame.visits + targets + 1).booster_.save_model(tmp_path / "m.txt")
    network = BoostedTrees(read_lightgbm(str(tmp_path / "m.txt")))
    assert _answers(network, rows)[:, 0] == pytest.approx(estimator.predict(frame), rel=1e-5)


def test_a_ranking_and_an_objective_of_ones_own_are_refused(
    lightgbm: Any, frame: Any, targets: Any, tmp_path: Path
) -> None:
    numbers = frame[["age", "visits"]]
    ranker = lightgbm.LGBMRanker(n_estimators=2, verbose=-1).fit(numbers, targets, group=[ROWS])
    ranker.booster_.save_model(tmp_path / "m.txt")
    with pytest.raises(ModelUnusable, match=r"'lambdarank', which cannot be served: it orders"):
        read_lightgbm(str(tmp_path / "m.txt"))
    text = (tmp_path / "m.txt").read_text()
    (tmp_path / "m.txt").write_text(re.sub(r"objective=.*\n", "", text, count=1))
    with pytest.raises(ModelUnusable, match="does not say what its numbers mean"):
        read_lightgbm(str(tmp_path / "m.txt"))


@pytest.mark.security
@pytest.mark.parametrize(
    ("pattern", "replacement", "reason"),
    [
        ("left_child=", "left_child=999 ", "nodes of other numbers"),
        ("left_child=-?[0-9]+", "left_child=99", "names a child"),
        ("left_child=-?[0-9]+", "left_child=0", "several parents"),
        ("split_feature=[0-9]+", "split_feature=77", "a column that"),
        ("objective=binary[^\n]*", "objective=", "does not say what"),
        ("^tree\n", "wood\n", "does not begin"),
    ],
)
def test_a_text_that_lightgbm_would_follow_out_of_its_memory_is_refused(
    lightgbm: Any, targets: Any, tmp_path: Path, pattern: str, replacement: str, reason: str
) -> None:
    numbers = np.random.default_rng(2).random((ROWS, 2))
    estimator = lightgbm.LGBMClassifier(n_estimators=2, verbose=-1, min_child_samples=5).fit(numbers, targets)
    text = re.sub(pattern, replacement, estimator.booster_.model_to_string(), count=1)
    (tmp_path / "m.txt").write_text(text)
    with pytest.raises(ModelUnusable, match=reason):
        read_lightgbm(str(tmp_path / "m.txt"))


def test_a_circle_is_no_tree() -> None:
    check_tree([1, -1, -1], [2, -1, -1], [0, 0, 0], 1)
    with pytest.raises(ValueError, match="several parents"):
        check_tree([1, 2, 1], [2, 1, 2], [0, 0, 0], 1)


def test_rows_are_matched_by_the_names_of_their_columns() -> None:
    columns = CodedColumns([CodedColumn("age"), CodedColumn("plan", "text", ("free", "pro"))])
    by_place, by_name = b'[41.5, "pro"]', b'{"plan": "pro", "id": 7, "age": 41.5}'
    numbers, faults = columns.numbers(
        [by_place, by_name, b"[null, null]", b'[1, "unheard of"]', b'["x", "pro"]']
    )
    assert numbers[:2].tolist() == [[41.5, 1.0], [41.5, 1.0]]
    assert np.isnan(numbers[2]).all()
    assert numbers[3, 0] == 1
    assert np.isnan(numbers[3, 1])  # what no tree has seen is missing
    assert faults == [4]
    assert columns.fault_of(by_name) is None
    assert columns.fault_of(b'{"age": 1}') == "the row '{\"age\": 1}' has no 'plan'"
    assert columns.fault_of(b'["x", "pro"]') == "'x' in column 'age' is not a number"


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_an_imported_file_is_served_as_its_library_answers(
    request: pytest.FixtureRequest, frame: Any, targets: Any, tmp_path: Path, library: str
) -> None:
    module = request.getfixturevalue(library)
    source = tmp_path / ("churn.ubj" if library == "xgboost" else "churn.txt")
    if library == "xgboost":
        module.XGBClassifier(n_estimators=8, enable_categorical=True).fit(frame, targets).save_model(source)
    else:
        estimator = module.LGBMClassifier(n_estimators=8, verbose=-1, min_child_samples=5).fit(frame, targets)
        estimator.booster_.save_model(source)
    recognise = RUNTIMES[library].recognise
    assert recognise is not None
    found = recognise(source, {"classes": ["stays", "leaves"]})
    assert isinstance(found, Recognised)
    assert found.manifest["task"] == "tabular-classification"
    assert not found.guesses
    manifest: Manifest = read_manifest(str(stored(found, tmp_path, "churn")))
    assert [name for name, _ in manifest.input.columns] == NAMES
    network = load_network(manifest, CPU)
    warm_up(network, manifest)
    answers = network.scores(found.samples, lambda: False)
    assert found.reference is not None
    assert answers == pytest.approx(found.reference(found.samples), abs=found.bound)
    assert network.resident_bytes > 0


def test_another_file_is_not_taken_for_trees(tmp_path: Path) -> None:
    for name, content in {"a.json": "{}", "b.txt": "trees grow", "c.ubj": ""}.items():
        (tmp_path / name).write_text(content)
        for library in ("xgboost", "lightgbm"):
            recognise = RUNTIMES[library].recognise
            assert recognise is not None
            assert recognise(tmp_path / name, {}) is None
            assert recognise(tmp_path, {}) is None


@pytest.mark.security
@pytest.mark.parametrize(
    "content",
    [
        b'{"a":' * 300_000,
        b"{" + b'"a":[' + b"[" * 300_000,
        b"{ }",
        (b"{L" + bytes(7) + b"\x01a") * 300_000,
        b"{L" + bytes(7) + b"\x01a" + b"[" * 300_000,
        b"{L" + bytes(7) + b"\x01a[",
    ],
)
def test_nonsense_that_nests_deep_ends_no_process(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "deep.json").write_bytes(content)
    with pytest.raises(ModelUnusable, match=r"deep\.json"):
        read_xgboost(str(tmp_path / "deep.json"))
