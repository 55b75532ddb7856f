"""A node of a Ray cluster that sees nothing of the server is taught by its photos, over an encrypted link.

Needs Ray, which is not part of `dev`: pip install 'ml_udf[ray]'.
"""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_worker.wire.protocol import (
    CheckpointStored,
    EpochTrained,
    Evaluate,
    Evaluated,
    Inspect,
    Inspected,
    StoreCheckpoint,
    TrainEpoch,
)
from server.workers.file_rows import FileRows
from server.workers.offered_pictures import PictureFiles
from server.workers.ray import NodeFiles
from tests.ray_machines import Machines
from tests.training_data import CLASSES, draw_photos
from tests.unit.server.pool_contract import served
from tests.waiting import until

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="NO RAY, NO CLUSTER: pip install 'ml_udf[ray]'"
)


def test_a_node_is_taught_by_photos_that_it_does_not_see(machines: Machines, tmp_path: Path) -> None:
    photos, node = tmp_path / "photos", tmp_path / "node"
    drawn = draw_photos(photos)
    rows = tmp_path / "home" / "rows.parquet"
    rows.parent.mkdir()
    splits = [("train", "train", "train", "validation")[at // 2 % 4] for at in range(len(drawn))]
    inputs, labels = zip(*drawn, strict=True)
    pq.write_table(pa.table({"input": inputs, "target": labels, "split": splits}), rows)
    spec = {"architecture": "resnet", "epochs": 1, "size": 32, "batch_rows": 16, "learning_rate": 0.01}
    told: dict[str, Any] = {"spec": spec, "snapshot": str(rows), "classes": list(CLASSES)}
    command = ["-m", "gpu_worker", "--fd={fd}", "--device=cpu", "--threads=1"]
    command += [f"--fetched={node}", f"--fetched-pictures={node}"]
    roots = [str(photos)]
    files = NodeFiles(
        lambda node: False, lambda node: False, FileRows(roots, 1 << 20), PictureFiles(roots, 1 << 20)
    )

    async def scenario() -> None:
        async with served(machines.pool(command, files=files, always_encrypted=True)) as (_, listener):
            await until(lambda: listener.up)
            worker = listener.up[0]
            seen = await worker.call(Inspect(0, [path.encode() for path in inputs]))
            assert isinstance(seen, Inspected), seen
            assert seen.errors == []
            trained = await worker.call(TrainEpoch(0, "t", start="", start_epoch=0, epoch=1, **told))
            assert isinstance(trained, EpochTrained), trained
            assert trained.skipped == 0
            stored = await worker.call(StoreCheckpoint(0, "t", str(tmp_path / "home")))
            assert isinstance(stored, CheckpointStored), stored
            start = str(tmp_path / "home" / f"{stored.checkpoint}.safetensors")
            answered = await worker.call(Evaluate(0, start=start, split="validation", **told))
            assert isinstance(answered, Evaluated), answered
            assert len(answered.predictions) == splits.count("validation")
        assert len(list(node.glob("pictures/*/*/*"))) == len(drawn)

    asyncio.run(scenario())
