"""Nothing of a batch is kept once it is over, whether it was answered, failed or cancelled."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpu_worker.engine import Engine
from gpu_worker.pipeline.batch import Batch
from gpu_worker.pipeline.forward import Tally
from gpu_worker.pipeline.piece import Piece
from tests.answers import SCORED
from tests.unit.gpu_worker.pictures import noise

PATIENCE_S = 90.0


def test_batches_leave_nothing_behind(engines: Callable[..., Engine], squeezenet: Path) -> None:
    engine = engines(threads=2)
    engine.load("m", str(squeezenet))
    images = [noise(seed) for seed in range(12)]
    rng = random.Random(1)
    for _ in range(60):
        rows = rng.choices([*images, b"no image", b""], k=rng.randint(0, 40))
        over = threading.Event()
        outputs = SCORED if rng.random() < 0.5 else ()
        batch = engine.begin(["m"], "image", rows, outputs=outputs, on_over=partial(_note, over))
        if rng.random() < 0.4:
            batch.cancel()
        assert over.wait(PATIENCE_S)
        del batch
    (resident,) = engine._cache.acquire(["m"])
    assert resident.users == 1, "every batch gave its model back"
    deadline_s = time.monotonic() + PATIENCE_S
    while (kept := _kept()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not kept


def _note(over: threading.Event, _: Batch) -> None:
    over.set()


_OF_BATCHES = (Batch, Piece, Tally)


def _kept() -> Counter[str]:
    gc.collect()
    things = (thing for thing in gc.get_objects() if type(thing) in _OF_BATCHES)
    return Counter(type(thing).__name__ for thing in things)
