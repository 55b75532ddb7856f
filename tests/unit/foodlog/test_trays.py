"""Trays: what is drawn on them lies where their boxes say, and trays.sql counts it."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from PIL import Image

from examples.foodlog.circle import TRAYS_FILE
from examples.foodlog.demo import ENSEMBLE, TRAY
from examples.foodlog.dishes import DISHES
from examples.foodlog.foodlog import User
from examples.foodlog.queries import read_queries
from examples.foodlog.tables import load_duckdb
from examples.foodlog.trays import lay_trays, take_tray

USERS = [User(number, f"user {number}", "Singapore") for number in range(1, 9)]
ON_IT = ("laksa", "pizza", "satay", "sushi")


def pixels(jpeg: bytes) -> np.ndarray[Any, Any]:
    image = Image.open(io.BytesIO(jpeg))
    image.load()
    assert (image.format, image.size) == ("JPEG", (80, 80))
    return np.asarray(image.convert("RGB")).astype(float)


def test_every_dish_has_its_box_within_the_photo() -> None:
    for number in range(4):
        _, told = take_tray(ON_IT, 80, seed=3, number=number)
        boxes = json.loads(told)
        assert sorted(box["label"] for box in boxes) == sorted(ON_IT)
        for box in boxes:
            x0, y0, x1, y1 = box["box"]
            assert 0 <= x0 < x1 <= 80
            assert 0 <= y0 < y1 <= 80
            assert 15 < x1 - x0 < 50
            assert 12 < y1 - y0 < 50


def test_what_is_on_a_tray_lies_in_its_box_and_nowhere_else() -> None:
    bare, full = np.zeros((80, 80)), np.zeros((80, 80))
    inside = np.zeros((80, 80))
    for number in range(24):  # what light and camera do to a photo is another thing in each
        photo, told = take_tray(("salad",), 80, seed=1, number=number)
        ((x0, y0, x1, y1),) = [box["box"] for box in json.loads(told)]
        colour = pixels(photo)
        green = colour[..., 1] - colour[..., [0, 2]].mean(axis=2)
        mask = np.zeros((80, 80), bool)
        mask[y0:y1, x0:x1] = True
        inside += mask
        full += np.where(mask, green - np.median(green), 0)
        bare += np.where(mask, 0, green - np.median(green))
    assert full.sum() / inside.sum() > 5 + bare.sum() / (24 * 6_400 - inside.sum())


def test_an_empty_tray_has_no_boxes_and_a_fifth_dish_no_place() -> None:
    photo, told = take_tray((), 80, seed=3, number=0)
    assert json.loads(told) == []
    assert pixels(photo).std() > 3
    with pytest.raises(ValueError, match="a tray holds 4 dishes, not 5"):
        take_tray((*ON_IT, "curry"), 80, seed=3, number=0)
    with pytest.raises(KeyError):
        take_tray(("gruel",), 80, seed=3, number=0)


def test_the_same_arguments_give_the_same_tray() -> None:
    assert take_tray(ON_IT, 80, 7, 3) == take_tray(ON_IT, 80, 7, 3)
    assert len({take_tray(ON_IT, 80, *which)[0] for which in ((7, 3), (8, 3), (7, 4))}) == 3


def test_trays_hold_any_dish_and_up_to_four_of_them_and_a_fifth_of_them_is_held_out() -> None:
    laid = lay_trays(200, USERS, seed=7)
    assert laid == lay_trays(200, USERS, seed=7) != lay_trays(200, USERS, seed=8)
    assert {dish for _, dishes in laid for dish in dishes} == set(DISHES)
    assert {len(dishes) for _, dishes in laid} == {0, 1, 2, 3, 4}
    assert sum(tray.split == "holdout" for tray, _ in laid) == 40
    assert {tray.user_id for tray, _ in laid} == {user.user_id for user in USERS}


def test_an_album_has_a_tray_for_every_five_photos(album_folder: Path) -> None:
    with (album_folder / "trays.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    for row in rows:
        assert (album_folder / "images" / row["image_path"]).is_file()
        assert all(box["label"] in DISHES for box in json.loads(row["dishes"]))
    assert any(json.loads(row["dishes"]) for row in rows)


@pytest.fixture(scope="module")
def con(album_folder: Path) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    load_duckdb(con, album_folder)
    con.execute("CREATE TABLE truth AS SELECT image_path AS photo, dishes AS on_it FROM trays")
    con.execute(
        "CREATE MACRO udf_tray(path) AS (SELECT CAST(CAST(on_it AS JSON)"
        " AS STRUCT(label VARCHAR, box DOUBLE[])[]) FROM truth WHERE photo = path)"
    )
    return con


def rows(con: duckdb.DuckDBPyConnection, number: int) -> list[tuple[Any, ...]]:
    (query,) = (query for query in read_queries(TRAYS_FILE) if query.number == number)
    return con.execute(query.sql).fetchall()


def test_dishes_are_counted_by_person(con: duckdb.DuckDBPyConnection) -> None:
    found = rows(con, 5)
    assert 1 < len(found) <= 5
    assert all(dishes == really for _, _, dishes, really in found)
    counts = [dishes for _, _, dishes, _ in found]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 0


def test_a_dish_is_looked_for_among_boxes(con: duckdb.DuckDBPyConnection) -> None:
    ((trays, laksa, really),) = rows(con, 6)
    assert trays == 3
    assert laksa == really


def test_a_pipeline_is_made_of_functions_that_the_demo_deploys_and_its_answers_are_counted(
    con: duckdb.DuckDBPyConnection,
) -> None:
    (made,) = (query for query in read_queries(TRAYS_FILE) if query.number == 7)
    stages = re.search(r"'(\[.*\])'", made.sql)
    assert stages is not None
    assert json.loads(stages[1]) == [TRAY, {"crop": {"margin": 0.1}}, ENSEMBLE]
    answer = '[{"label": "x", "answer": {"label": "laksa", "confidence": 1}}, {"answer": null}]'
    con.execute(f"CREATE OR REPLACE MACRO udf_tray_dishes(path) AS CAST('{answer}' AS JSON)")
    ((trays, dishes, laksa),) = rows(con, 8)
    assert trays > 0
    assert (dishes, laksa) == (2 * trays, trays)
