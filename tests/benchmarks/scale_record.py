"""`python -m tests.benchmarks.scale_record`: what `make bench-scale` replays, recorded from real runs.

Batches: a worker process on one core answers drawn photos through one model, in batches of 1 to 64, every
size in turn; kept is what the worker says that each took. Trials: those of a job that a server has trained,
by its journal; kept are each epoch's score, and the seconds of the trial's epochs in the mean. Written to
`scale_recorded.json` beside this file, which is small and part of the repository: everybody replays the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from examples.foodlog.draw import Album, draw_album
from gpu_worker.wire.protocol import Answer, Infer, Load, Loaded
from server.training.studies.journal import read_journal
from server.workers.local import LocalPool
from tests.benchmarks.report import console
from tests.models import image_model
from tests.unit.server.pool_contract import served
from tests.waiting import until

RECORDED = Path(__file__).with_name("scale_recorded.json")
SIZES = (1, 2, 4, 8, 16, 32, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--turns", type=int, default=15, help="batches of each size")
    parser.add_argument("--journal", type=Path, help="HOME/training/studies/job-N.journal; none: no trials")
    parser.add_argument("--no-batches", action="store_true", help="those that were recorded stay")
    flags = parser.parse_args()
    told = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if not flags.no_batches:
        with tempfile.TemporaryDirectory(prefix="ml_udf-bench-") as folder:
            photos = Path(folder) / "drawn"
            draw_album(photos, Album(images=120, rows=1))
            rows = [path.read_bytes() for path in sorted(photos.rglob("*.jpg"))]
            told["batches"] = "squeezenet, 64x64 pixels, JPEG bytes, one core"
            told["row_bytes"] = round(statistics.mean(map(len, rows)))
            told["took_s"] = uvloop.run(_batches(Path(folder) / "models", rows, flags.turns))
    if flags.journal is not None:
        told["trials"] = _trials(flags.journal)
    told["at"] = datetime.now(UTC).isoformat(timespec="seconds")
    RECORDED.write_text(json.dumps(told).replace("}, ", "},\n").replace("], ", "],\n") + "\n")
    console.print(f"written: {RECORDED}")


async def _batches(folder: Path, rows: list[bytes], turns: int) -> dict[str, list[float]]:
    """Rows of a batch → what the worker says that each of them took."""
    model = image_model(folder, "recorded")
    pool = LocalPool(
        1, lambda index, fd: [sys.executable, "-m", "gpu_worker", f"--fd={fd}", "--device=cpu", "--threads=1"]
    )
    took_s: dict[str, list[float]] = {str(size): [] for size in SIZES}
    async with served(pool) as (_, listener):
        await until(lambda: listener.up, within_s=60.0)
        worker = listener.up[0]
        loaded = await worker.call(Load(0, "recorded/1", str(model)))
        assert isinstance(loaded, Loaded), loaded
        for turn in range(turns + 2):  # the first two warm it up
            for size in SIZES:
                at = (turn * 7) % len(rows)
                batch = [rows[(at + row) % len(rows)] for row in range(size)]
                answer = await worker.call(Infer(0, ["recorded/1"], "image", batch))
                assert isinstance(answer, Answer), answer
                assert not answer.errors, answer.errors[0]
                if turn > 1:
                    took_s[str(size)].append(round(answer.work_s, 6))
    return took_s


def _trials(journal: Path) -> list[dict[str, Any]]:
    """Of every trial of a job its epochs' scores and seconds."""
    storage = read_journal(str(journal))
    if storage is None:
        raise SystemExit(f"there is no journal at {journal}")
    kept = [
        json.loads(trial.user_attrs["ml_udf:trial"])
        for study in storage.get_all_studies()
        for trial in storage.get_all_trials(study._study_id)
        if "ml_udf:trial" in trial.user_attrs
    ]
    return [
        {
            "scores": [round(score, 5) for score in one["scores"]],
            "took_s": [round(one["took_s"] / len(one["scores"]), 5)],  # what is kept of it is the sum
        }
        for one in kept
        if one["scores"]
    ]


if __name__ == "__main__":
    main()
