"""What a pipeline says of the things in a picture, as JSON."""

from __future__ import annotations

import json
import math

import numpy as np

from gpu_worker.wire.columns import Column
from server.ensemble.objects import answers_of, objects_text


def test_numbers_are_those_that_the_last_stage_answers_and_no_longer_than_they_must_be() -> None:
    drawn = np.random.default_rng(0).standard_normal((500, 4)).astype(np.float32)
    drawn[0] = 0.1, np.finfo(np.float32).max, -1e-30, 0.0
    told = answers_of([Column("embedding", "FP32", (4,), drawn.tobytes())])
    assert told[0]["embedding"] == [0.1, 3.4028235e38, -1e-30, 0.0]
    boxes = [{"label": "a", "score": 0.5, "box": [0, 0, 1, 1]}] * len(told)
    read = [box["answer"]["embedding"] for box in json.loads(objects_text(boxes, told))]
    assert np.array_equal(np.array(read, np.float32), drawn)
    assert read == drawn.astype("U").astype(np.float64).tolist()


def test_a_number_that_is_none_is_null() -> None:
    values = np.array([1.5, math.nan], np.float64)
    told = answers_of([Column("value", "FP64", (), values.tobytes())])
    assert told == [{"value": 1.5}, {"value": None}]
