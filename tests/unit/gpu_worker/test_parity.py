"""Parity models in a worker: what they see of a group of pictures, and how they are taught."""

from __future__ import annotations

import functools
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from gpu_worker.engine import Engine
from gpu_worker.errors import BadRequest, ModelUnusable
from gpu_worker.model_files.manifest import InputSpec, Manifest, read_manifest
from gpu_worker.model_files.parity_spec import ParitySpec, parity_from
from gpu_worker.model_files.saving import save_model
from gpu_worker.networks.build import build_module
from gpu_worker.pipeline.encoding import encoded
from gpu_worker.settings import Settings
from gpu_worker.variants import making
from gpu_worker.variants.calibration import Calibration
from gpu_worker.variants.making import make_variant
from gpu_worker.variants.parity import logs_of, parity_input, rebuilt_places, taught
from gpu_worker.wire.row_groups import in_one_row, rows_in
from tests.answers import scores_of

SIDE = 32
CLASSES = ("dark", "light")
INPUT = InputSpec("path", SIDE, SIDE, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def picture(level: int) -> np.ndarray:
    return np.full((SIDE, SIDE, 3), level, np.uint8)


def png(level: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture(level)).save(file, "PNG")
    return file.getvalue()


def stored(folder: Path, name: str = "net", parity: ParitySpec | None = None) -> Manifest:
    task, weights = "image-classification", build_module("small_cnn", 2, {}).state_dict()
    manifest = Manifest(
        str(folder / name), name, 1, task, "torch", "small_cnn", CLASSES, INPUT, parity=parity
    )
    return save_model(manifest, weights)


@pytest.fixture
def engine(tmp_path: Path):
    stored(tmp_path)
    stored(tmp_path, "net~parity-2", ParitySpec(2, "sum"))
    found = Engine(Settings(device="cpu", media_roots=(str(tmp_path),)))
    found.load("net/1", str(tmp_path / "net"))
    found.load("net~parity-2/1", str(tmp_path / "net~parity-2"))
    yield found
    found.close()


def test_the_sum_of_pictures_is_their_mean_rounded_to_the_nearest_level():
    assert (encoded([picture(10), picture(20)], "sum") == 15).all()
    assert (encoded([picture(255)] * 4, "sum") == 255).all()
    assert (encoded([picture(0), picture(0), picture(1), picture(1)], "sum") == 1).all()


@pytest.mark.parametrize(("count", "corner"), [(2, 20), (3, 0), (4, 40)])
def test_tiles_stand_side_by_side_and_the_last_is_black_where_it_is_missing(count: int, corner: int):
    tiled = encoded([picture(10 * (place + 1)) for place in range(count)], "tiles")
    assert tiled.shape == (SIDE, SIDE, 3)
    assert (tiled[0, 0, 0], tiled[0, -1, 0], tiled[-1, -1, 0]) == (10, 20, corner)


def test_what_a_network_sees_of_a_sum_is_the_sum_of_what_it_sees():
    def seen(spec: InputSpec, level: float) -> float:
        return (level / 255 - spec.mean[0]) / spec.std[0]

    as_sum = parity_input(INPUT, ParitySpec(3, "sum"))
    assert seen(as_sum, (30 + 90 + 240) / 3) == pytest.approx(
        sum(seen(INPUT, each) for each in (30, 90, 240))
    )
    assert parity_input(INPUT, ParitySpec(3, "tiles")) == INPUT


def test_a_group_by_path_or_by_bytes_is_one_picture(engine: Engine, tmp_path: Path):
    for level in (10, 20, 15):
        (tmp_path / f"{level}.png").write_bytes(png(level))
    by_path = in_one_row([str(tmp_path / f"{level}.png").encode() for level in (10, 20)])
    rows = {"path": [by_path], "image": [in_one_row([png(10), png(20)])]}
    mean = in_one_row([png(15), png(15)])
    wanted = engine.infer(["net~parity-2/1"], "image", [mean], outputs=["scores"]).members[0]
    for form, group in rows.items():
        found = engine.infer(["net~parity-2/1"], form, group, outputs=["scores"]).members[0]
        assert scores_of(found) == scores_of(wanted)


def test_what_is_no_group_is_a_fault_of_its_row_alone(engine: Engine):
    bad = [png(10), in_one_row([png(10)]), in_one_row([png(10), b"no picture"]), b""]
    answer = engine.infer(["net~parity-2/1"], "image", [*bad, in_one_row([png(10), png(20)])])
    assert [error.index for error in answer.errors] == [0, 1, 2, 3]
    assert "group of 2 rows" in answer.errors[0].message


def test_a_parity_model_is_asked_alone(engine: Engine):
    with pytest.raises(BadRequest, match="alone"):
        engine.begin(["net/1", "net~parity-2/1"], "image", [png(10)])


@pytest.mark.parametrize("rows", [[b"a", b"b"], [b"", b""], [b"x" * 70_000, b""]])
def test_a_group_is_read_back_as_it_was_written(rows: list[bytes]):
    assert rows_in(in_one_row(rows), 2) == rows


@pytest.mark.parametrize("group", [b"", b"\x01\0\0\0", b"\xff\xff\xff\xffab", in_one_row([b"a"]), b"abc"])
def test_what_was_not_written_so_is_no_group(group: bytes):
    with pytest.raises(ValueError, match="group of 2"):
        rows_in(group, 2)


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "taught", functools.partial(taught, most_steps=2))


@pytest.mark.usefixtures("few_steps")
def test_it_is_taught_by_the_training_rows_and_stored_as_a_model_of_its_own(tmp_path: Path):
    original = stored(tmp_path)
    snapshot = snapshot_of(tmp_path, [png(level) for level in (10, 60, 120, 200)])
    steps: list[int] = []
    made = make_with(tmp_path, snapshot, steps)
    assert (made.k, made.encoder) == (2, "tiles")
    weights, count = taught(
        original, ParitySpec(3, "sum"), calibration(snapshot, original), lambda: None, most_steps=2
    )
    assert count == 4
    assert weights.keys() == build_module("small_cnn", 2, {}).state_dict().keys()
    assert len(steps) >= 2


def make_with(folder: Path, snapshot: Path, steps: list[int]) -> ParitySpec:
    target = folder / "made"
    made = make_variant(
        folder / "net",
        target,
        "net~parity-2",
        "parity-2",
        calibration=lambda manifest: calibration(snapshot, manifest),
        on_step=lambda: steps.append(1),
    )
    assert made.calibrated == 4
    manifest = read_manifest(str(target))
    assert manifest.name == "net~parity-2"
    assert manifest.parity is not None
    return manifest.parity


@pytest.mark.parametrize("recipe", ["parity-5", "parity-2-stripes", "parity"])
def test_what_no_parity_model_is_called_is_no_variant(recipe: str, tmp_path: Path):
    stored(tmp_path)
    with pytest.raises(ModelUnusable, match="no variant"):
        make_variant(tmp_path / "net", tmp_path / "made", "net~x", recipe)


def test_without_training_rows_there_is_none(tmp_path: Path):
    stored(tmp_path)
    with pytest.raises(ModelUnusable, match="name the dataset"):
        make_variant(tmp_path / "net", tmp_path / "made", "net~parity-2", "parity-2")
    snapshot = snapshot_of(tmp_path, [b"no picture"])
    with pytest.raises(ModelUnusable, match="refresh the dataset"):
        make_with(tmp_path, snapshot, [])


def test_a_model_that_adds_exactly_rebuilds_what_its_model_names():
    random = np.random.default_rng(3)
    pixels = np.stack([picture(level) for level in (10, 70, 130, 250)])
    share = pixels[:, 0, 0, 0] / 255
    own = np.stack([share, 1 - share], axis=1).astype(np.float32)

    def added(pictures: np.ndarray) -> np.ndarray:
        """Of halves beside each other, what the model says of each."""
        halves = pictures[:, 0, 0, 0] / 255, pictures[:, 0, -1, 0] / 255
        shares = [np.stack([half, 1 - half], axis=1) for half in halves]
        return np.asarray(shares[0] * shares[1], np.float32)

    assert (rebuilt_places(own, added, pixels, ParitySpec(2, "tiles")) == own.argmax(axis=1)).all()
    assert logs_of(random.dirichlet(np.ones(3), 5).astype(np.float32)).sum(axis=1) == pytest.approx(
        0, abs=1e-5
    )


@pytest.mark.parametrize(
    "said",
    [7, {}, {"k": 2}, {"k": 1, "encoder": "sum"}, {"k": 2, "encoder": "x"}, {"k": True, "encoder": "sum"}],
)
def test_a_manifest_that_says_something_else_is_refused(said: object):
    with pytest.raises(ValueError, match="parity"):
        parity_from({"parity": said})


def snapshot_of(folder: Path, pictures: list[bytes]) -> Path:
    for place, data in enumerate(pictures):
        (folder / f"{place}.png").write_bytes(data)
    paths = [str(folder / f"{place}.png") for place in range(len(pictures))]
    table = pa.table({"input": paths, "target": ["dark"] * len(paths), "split": ["train"] * len(paths)})
    pq.write_table(table, folder / "rows.parquet")
    return folder / "rows.parquet"


def calibration(snapshot: Path, manifest: Manifest) -> Calibration:
    return Calibration(str(snapshot), manifest, lambda path: Path(path.decode()).read_bytes(), 100, 1 << 20)
