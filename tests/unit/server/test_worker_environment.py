"""Workers get what programs need of the server's environment, and none of its secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.workers.environment import worker_environment
from tests.inference_server import inference_server
from tests.waiting import wait_until

pytestmark = pytest.mark.security

SECRETS = {
    "ML_UDF_DATABASE_URL": "postgresql://user:secret@host/db",
    "ML_UDF_PARAMETERS_URL": "s3://key:secret@bucket",
    "ML_UDF_TOKEN_FILE": "/run/secret",
    "PGPASSWORD": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "HF_TOKEN": "secret",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "PATHOLOGY": "secret",
    "": "secret",
}
NEEDED = {
    "PATH": "/usr/bin",
    "HOME": "/home/ml",
    "LC_ALL": "C.UTF-8",
    "CUDA_VISIBLE_DEVICES": "1",
    "OMP_NUM_THREADS": "2",
    "LD_LIBRARY_PATH": "/opt/cuda",
}


def test_secrets_stay_and_what_is_needed_goes() -> None:
    assert worker_environment({**SECRETS, **NEEDED}) == NEEDED


def test_an_operator_names_more() -> None:
    given = worker_environment({**SECRETS, **NEEDED}, ["HF_TOKEN", "ABSENT"])
    assert given == {**NEEDED, "HF_TOKEN": "secret"}


def test_a_real_worker_has_no_secret_in_its_environment_and_no_more_memory_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'registry.db'}?timeout=7"
    monkeypatch.setenv("ML_UDF_DATABASE_URL", url)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "needed")
    most = 3 << 30
    with inference_server(
        tmp_path / "home",
        flags=[f"--worker-memory-bytes={most}", "--worker-env=HF_TOKEN"],
        forked=False,
    ) as server:
        wait_until(server.worker_pids)
        (pid,) = server.worker_pids()
        process = Path(f"/proc/{pid}")
        variables = dict(
            each.partition("=")[::2] for each in (process / "environ").read_text().split("\0") if each
        )
        assert variables.keys().isdisjoint(SECRETS.keys() - {"HF_TOKEN"})
        assert url not in variables.values()
        assert variables["HF_TOKEN"] == "needed"
        wait_until(lambda: f"{most} " in _line_of(process / "limits", "Max data size"))


def _line_of(file: Path, begins: str) -> str:
    return next(line for line in file.read_text().splitlines() if line.startswith(begins))
