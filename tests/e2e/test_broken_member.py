"""A member whose weights are spoilt: a hundred labels mend the answers, and the reason can be read."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_worker.model_files.regular import file_sha256
from server.training.promotion.combination import choose_combination
from tests.contract.oip_wire import call, infer_body, metric
from tests.inference_server import ANEW, InferenceServer, inference_server
from tests.models import CLASSES, text_model
from tests.waiting import wait_until

BLURS = {"sharp": 0.05, "fair": 0.14, "rough": 0.18}  # of a member's weights, beside the teacher's
WORDS = [f"{word} {number}" for number in range(1200) for word in ("soup", "bread")]
HELD_OUT, UNSEEN, LABELLED = WORDS[:800], WORDS[800:1400], WORDS[1400:]


def blurred(directory: Path, name: str, share: float, seed: int) -> Path:
    """The teacher's model with noise on its weights: right most of the time."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = text_model(directory, name, seed=1)
    draw = torch.Generator().manual_seed(seed)
    state = load_file(folder / "model.safetensors")
    for key, value in state.items():
        state[key] = value + share * value.std() * torch.randn(value.shape, generator=draw)
    save_file(state, folder / "model.safetensors")
    return signed(folder)


def signed(folder: Path) -> Path:
    """Its manifest says what its weights are now."""
    manifest = json.loads((folder / "model.json").read_text())
    manifest["sha256"] = file_sha256(str(folder / "model.safetensors"))
    (folder / "model.json").write_text(json.dumps(manifest))
    return folder


def spoil(folder: Path) -> None:
    """It names other classes from now on, and is as sure as it was."""
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors")
    for key, value in state.items():
        if value.shape[0] == len(CLASSES):
            state[key] = value.roll(1, 0).contiguous()
    save_file(state, folder / "model.safetensors")
    signed(folder)


def scores(server: InferenceServer, model: str, texts: list[str]) -> Any:  # float32 [rows, classes]
    reply = call(server.port, "POST", f"/v2/models/{model}/infer", infer_body(*texts, outputs=("scores",)))
    assert reply.status == 200, reply.body
    return np.asarray(reply.json()["outputs"][0]["data"], np.float32).reshape(len(texts), -1)


def answers(server: InferenceServer, texts: list[str]) -> list[str]:
    found: list[str] = []
    for first in range(0, len(texts), 100):
        part = infer_body(*texts[first : first + 100], outputs=("label",))
        reply = call(server.port, "POST", "/v2/models/udf_dish/infer", part)
        assert reply.status == 200, reply.body
        found += reply.json()["outputs"][0]["data"]
    return found


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[InferenceServer, dict[str, str]]]:
    """A server with `udf_dish` of three members, which follows plans by what was fitted; and the truth."""
    made = tmp_path_factory.mktemp("made")
    with inference_server(tmp_path_factory.mktemp("home"), flags=[ANEW]) as server:
        server.deploy(text_model(made, "teacher", seed=1))
        for seed, (name, share) in enumerate(BLURS.items(), 10):
            server.deploy(blurred(made, name, share, seed))
        told = scores(server, "teacher", WORDS).argmax(axis=1)
        truth = {text: CLASSES[label] for text, label in zip(WORDS, told, strict=True)}
        held_out = {name: scores(server, name, HELD_OUT) for name in BLURS}
        fit = choose_combination(held_out, told[: len(HELD_OUT)]).fit
        body = {"models": list(BLURS), "combine": "log_pool", "slo_ms": 2000}
        assert call(server.port, "PUT", "/v1/functions/udf_dish", body).status == 200
        server.stop()
        with contextlib.closing(sqlite3.connect(server.home / "registry.db")) as registry, registry:
            spec = json.dumps({**body, "models": [f"{name}/1" for name in BLURS], "select": "value"})
            registry.execute("UPDATE deployments SET fit = ?, spec = ?", [json.dumps(fit.to_json()), spec])
        server.start()
        yield server, truth


def give(server: InferenceServer, truth: dict[str, str], texts: list[str]) -> None:
    body = {"function": "udf_dish", "inputs": texts, "labels": [truth[text] for text in texts]}
    reply = call(server.port, "POST", "/v1/feedback", body)
    assert reply.status == 200, reply.body
    assert reply.json()["errors"] == []


def shown(server: InferenceServer) -> dict[str, Any]:
    return dict(call(server.port, "GET", "/v1/functions/udf_dish").json()["feedback"] or {})


def reload(server: InferenceServer) -> None:
    """Its workers read the models anew."""
    server.kill_workers()
    wait_until(lambda: call(server.port, "GET", "/v2/health/ready").status == 200, within_s=60)
    wait_until(lambda: call(server.port, "GET", "/v1/functions/udf_dish").json()["ready"], within_s=60)


def accuracy(server: InferenceServer, truth: dict[str, str]) -> float:
    return sum(a == truth[t] for a, t in zip(answers(server, UNSEEN), UNSEEN, strict=True)) / len(UNSEEN)


def test_spoilt_weights_cost_little_after_a_hundred_labels_and_the_reason_can_be_read(
    house: tuple[InferenceServer, dict[str, str]],
) -> None:
    server, truth = house
    answers(server, UNSEEN)  # plans are there after the first
    wait_until(lambda: "plans fitted" in server.log, within_s=60)
    whole = accuracy(server, truth)
    folder = server.home / "models" / "sharp" / "1"
    good = {path: path.read_bytes() for path in folder.iterdir()}
    spoil(folder)
    reload(server)
    broken = accuracy(server, truth)
    assert broken < 0.75 * whole, "the member did not matter, and nothing is shown here"
    give(server, truth, LABELLED[:50])
    give(server, truth, LABELLED[50:100])
    wait_until(lambda: shown(server)["refit"], within_s=30)
    wait_until(lambda: accuracy(server, truth) >= 0.9 * whole, within_s=30)
    refit = shown(server)["refit"]
    assert refit["members"] == ["sharp"]
    assert refit["reason"].startswith("sharp wrong on ")
    assert " labels, expected " in refit["reason"]
    assert "refitted function=udf_dish" in server.log
    assert metric(server.port, "ml_udf_refits_total", function="udf_dish", fit="refitted") >= 1
    server.stop()
    server.start()
    assert shown(server)["refit"] == refit
    assert accuracy(server, truth) >= 0.9 * whole

    for path, content in good.items():
        path.write_bytes(content)
    reload(server)
    for first in range(100, 400, 50):
        give(server, truth, LABELLED[first : first + 50])
    wait_until(lambda: not shown(server)["refit"]["members"], within_s=30)
    wait_until(lambda: accuracy(server, truth) >= whole - 0.01, within_s=30)
    assert shown(server)["refit"]["reason"].endswith("answers as deployed again")
    assert metric(server.port, "ml_udf_refits_total", function="udf_dish", fit="deployed") == 1


def test_without_labels_a_spoilt_member_is_left_out_until_it_agrees_again(
    house: tuple[InferenceServer, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, truth = house
    monkeypatch.setenv("ML_UDF_SHADOW_SHARE", "1")  # not a hundredth: so it takes seconds
    server.stop()
    server.start()
    answers(server, UNSEEN)
    whole = accuracy(server, truth)
    folder = server.home / "models" / "sharp" / "1"
    good = {path: path.read_bytes() for path in folder.iterdir()}
    spoil(folder)
    reload(server)

    def refit() -> dict[str, Any]:
        answers(server, UNSEEN[:100])
        return dict(shown(server)["refit"] or {"members": [], "reason": ""})

    wait_until(lambda: refit()["members"] == ["sharp"], within_s=60)
    assert refit()["reason"].startswith("sharp agrees with the others on ")
    assert refit()["reason"].endswith("left out until it agrees again, or labels tell more")
    wait_until(lambda: accuracy(server, truth) >= 0.9 * whole, within_s=30)
    assert metric(server.port, "ml_udf_refits_total", function="udf_dish", fit="guarded") == 1
    assert metric(server.port, "ml_udf_shadow_rows_total", function="udf_dish") >= 30
    for path, content in good.items():
        path.write_bytes(content)
    reload(server)
    wait_until(lambda: not refit()["members"], within_s=60)
    assert refit()["reason"] == "sharp agrees with the others again: answers as deployed again"
