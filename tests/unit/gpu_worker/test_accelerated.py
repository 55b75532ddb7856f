"""A model on an accelerator answers as on the CPU: in a precision that was tried, by recordings that fit.

The accelerator is made of tensors of the CPU; tests/gpu has a real one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_worker.device import Device, find_device
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.networks.accelerated import Accelerated
from gpu_worker.networks.cuda_streams import computing_in
from gpu_worker.networks.graph_sizes import GRAPH_SIZES, Recordings
from gpu_worker.networks.lane import Lane
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.network import Floats, Network, reading
from gpu_worker.networks.precision import Precision, Verdict
from gpu_worker.networks.sequence_network import Head, SequenceNetwork
from gpu_worker.networks.text_tokenizer import TextRules, TextTokenizer
from gpu_worker.networks.torch_loader import as_it_suits, network_of, prepared_module
from gpu_worker.networks.torch_network import TorchNetwork
from gpu_worker.networks.weights import layout_of
from tests.models import image_model

CPU = find_device("cpu", threads=1)
PIXELS = np.random.default_rng(5).integers(0, 256, (9, 64, 64, 3), np.uint8)


class Back:
    def __init__(self, found: Tensor) -> None:
        self._found = found

    def wait(self) -> Floats:
        found: Floats = self._found.numpy()
        return found

    def computed_s(self) -> float:
        return 0.125


class HostStreams:
    """Does everything at once, in the host's memory; passes: rows of each."""

    def __init__(self) -> None:
        self.passes: list[int] = []

    def copy_in(self, inputs: np.ndarray) -> Tensor:
        return torch.from_numpy(inputs)

    def compute(self, run: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
        self.passes.append(len(batch))
        return run(batch)

    def copy_out(self, found: Tensor) -> Back:
        return Back(found)


class Precisions:
    """Every number is off by so much in a precision; notes what ran."""

    def __init__(self, **off: float) -> None:
        self.off, self.ran = off, list[str]()

    def computing_in(self, precision: Precision, run: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
        self.ran.append(precision)
        return run(batch) * (1 - self.off.get(precision, 0.0))


class Graphs:
    """Recordings that are what the run gave when they were made, and say when they are used."""

    def __init__(self, run: Callable[[Tensor], Tensor], weights_at: Callable[[], int]) -> None:
        self.run, self.weights_at = run, weights_at
        self.recorded: tuple[int, ...] = ()
        self.batches: list[int] = []

    def __call__(self, batch: Tensor) -> Tensor:
        self.batches.append(len(batch))
        return self.run(batch)

    def record(self, size: int, like: Tensor) -> None:
        assert like.shape[0] == 1
        self.recorded = (size, *self.recorded)

    def clear(self) -> None:
        self.recorded = ()


class Made:
    """A network on such an accelerator, whose module was tried in float16 and TF32."""

    def __init__(self, folder: Path, precisions: Precisions, monkeypatch: pytest.MonkeyPatch) -> None:
        self.graphs: list[Graphs] = []
        self.serving, self.beside = HostStreams(), HostStreams()
        self._lanes = Lane(self.serving), Lane(self.beside)
        self._precisions = precisions
        manifest = read_manifest(str(folder))
        monkeypatch.setattr("gpu_worker.networks.precision._ROWS", 8)
        monkeypatch.setattr("gpu_worker.networks.torch_network.on_cuda", self._accelerated)
        monkeypatch.setattr("gpu_worker.networks.torch_loader.narrower", lambda *_: ("float16", "tf32"))
        monkeypatch.setattr(Device, "is_cuda", True)
        monkeypatch.setattr(Device, "computes_on", "cpu")
        module, verdict = as_it_suits(prepared_module(manifest), manifest, CPU)
        network = network_of(module, manifest, CPU, verdict)
        assert isinstance(network, TorchNetwork)
        warm_up(network, manifest)
        self.network = network

    def _accelerated(self, _: Device, verdict: Verdict | None, *, recorded: bool) -> Accelerated:
        graphs = self._recorded if recorded else None
        return Accelerated(*self._lanes, self._precisions.computing_in, verdict or Verdict("float32"), graphs)

    def _recorded(self, run: Callable[[Tensor], Tensor], weights_at: Callable[[], int]) -> Graphs:
        self.graphs.append(Graphs(run, weights_at))
        return self.graphs[-1]


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_model(tmp_path_factory.mktemp("model"), "m", "resnet")


@pytest.fixture(scope="module")
def plain(resnet: Path) -> Network:
    """The same model on the CPU."""
    manifest = read_manifest(str(resnet))
    network = load_network(manifest, CPU)
    warm_up(network, manifest)
    return network


def prepared(folder: Path) -> torch.nn.Module:
    return prepared_module(read_manifest(str(folder)))


def never() -> bool:
    return False


def test_it_answers_as_on_the_cpu_and_says_in_which_precision(
    resnet: Path, plain: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(resnet, Precisions(float16=0.004), monkeypatch)
    assert made.network.precision.startswith("float16 (agreement 1.0000, largest difference 0.00")
    found, expected = (network.scores(PIXELS, never) for network in (made.network, plain))
    np.testing.assert_allclose(found, expected * 0.996, atol=5e-3)  # in numbers of half the width
    assert made.network.pass_s() == 0.125
    assert made.network.resident_bytes == plain.resident_bytes // 2
    assert layout_of(made.network._module).nbytes < 0.6 * layout_of(prepared(resnet)).nbytes


def test_first_passes_and_trials_keep_nobody_waiting_who_is_served(
    resnet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(resnet, Precisions(), monkeypatch)
    assert made.beside.passes
    assert not made.serving.passes
    made.network.scores(PIXELS, never)
    assert made.serving.passes == [9]


def test_a_precision_that_answers_otherwise_is_not_used(
    resnet: Path, plain: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    precisions = Precisions(float16=0.5, tf32=0.5)
    made = Made(resnet, precisions, monkeypatch)
    assert made.network.precision == "float32"
    precisions.ran.clear()
    np.testing.assert_allclose(made.network.scores(PIXELS, never), plain.scores(PIXELS, never), atol=1e-5)
    assert set(precisions.ran) == {"float32"}


def test_pixels_run_by_recordings_and_tensors_without(
    resnet: Path, plain: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(resnet, Precisions(float16=0.5, tf32=0.5), monkeypatch)
    (graphs,) = [each for each in made.graphs if each.recorded]
    assert graphs.recorded == GRAPH_SIZES
    assert graphs.weights_at() != 0
    assert made.network.resident_bytes == plain.resident_bytes
    assert graphs.batches.count(64) == 3, "the pass that activations are measured by is none of them"
    graphs.batches.clear()
    made.network.scores(PIXELS, never)
    made.network.scores(np.zeros((3, 3, 64, 64), np.float32), never)
    assert graphs.batches == [9]
    made.network.left_device()
    assert not graphs.recorded


@pytest.mark.parametrize("head", ["features", "scores"])
@pytest.mark.parametrize(("off", "expected"), [(0.004, "float16"), (0.5, "float32")])
def test_texts_run_in_the_precision_that_answers_as_float32_does(
    head: Head, off: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="pip install 'ml_udf[embeddings]'")
    words = {word: at for at, word in enumerate(["[UNK]", "a", "car", "runs", "fast"])}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()

    def network(precisions: Precisions | None) -> SequenceNetwork:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Embedding(len(words), 8), torch.nn.Linear(8, 3))

        def run(module: torch.nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
            found: Tensor = module(tokens)
            return found if head == "features" else found.mean(1)

        lanes = Lane(HostStreams()), Lane(HostStreams())
        with monkeypatch.context() as patched:
            if precisions is not None:
                patched.setattr(Device, "is_cuda", True)
                patched.setattr(Device, "computes_on", "cpu")
                patched.setattr("gpu_worker.networks.sequence_network.narrower", lambda *_: ("float16",))
                patched.setattr(
                    "gpu_worker.networks.sequence_network.on_cuda",
                    lambda _, verdict: Accelerated(
                        *lanes, precisions.computing_in, verdict or Verdict("float32")
                    ),
                )
            found = SequenceNetwork(
                run,
                module,
                TextTokenizer(own, TextRules(16)),
                CPU,
                head=head,
                activation="none" if head == "features" else "softmax",
            )
            found.warm_up(1)
            return found

    made, plain = network(Precisions(float16=off)), network(None)
    assert made.precision.split()[0] == expected
    texts = [b"a car runs", b"fast", b"a car runs fast fast car"]
    found, wanted = (reading(each, head)(texts, never) for each in (made, plain))
    np.testing.assert_allclose(
        np.asarray(found, np.float32), np.asarray(wanted, np.float32), rtol=0.01, atol=0.01
    )
    if expected == "float16":
        assert made.resident_bytes == plain.resident_bytes // 2


def test_a_recording_is_of_use_while_the_weights_stay_where_they_were() -> None:
    recordings: Recordings[str] = Recordings()
    assert recordings.find(3, 100) is None
    recordings.keep(4, "four")
    assert recordings.find(3, 100) == (4, "four")
    assert recordings.find(5, 100) is None
    assert recordings.find(3, 200) is None, "they have moved"
    assert recordings.find(3, 100) is None, "and back is elsewhere too"


def test_a_size_is_recorded_once_it_has_run_often_enough_and_not_again_where_that_failed() -> None:
    recordings: Recordings[str] = Recordings()
    due = [recordings.is_due(3) for _ in range(16)]
    assert due == [None] * 15 + [4]
    recordings.refuse(4)
    assert [recordings.is_due(4) for _ in range(40)] == [None] * 40
    assert recordings.is_due(1000) is None


def test_lanes_that_want_the_same_of_float32_go_on_side_by_side_and_others_wait() -> None:
    said: list[str] = []
    inside, go_on = threading.Semaphore(0), threading.Event()

    def passed(batch: Tensor) -> Tensor:
        said.append(torch.backends.cuda.matmul.fp32_precision)
        inside.release()
        assert go_on.wait(30)
        return batch

    batch = torch.zeros(1)
    with ThreadPoolExecutor(3) as lanes:
        ordinary: list[Precision] = ["float32", "float16"]
        running = [lanes.submit(computing_in, precision, passed, batch) for precision in ordinary]
        assert inside.acquire(timeout=30)
        assert inside.acquire(timeout=30), "beside the first"
        running.append(lanes.submit(computing_in, "tf32", passed, batch))
        assert not inside.acquire(timeout=0.1)
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        go_on.set()
        assert inside.acquire(timeout=30)
        for each in running:
            each.result(30)
    assert said == ["ieee", "ieee", "tf32"]


def test_float32_is_the_host_libraries_own_number() -> None:
    batch = torch.ones(2, 3)
    assert torch.equal(computing_in("float32", lambda x: x * 2, batch), batch * 2)
