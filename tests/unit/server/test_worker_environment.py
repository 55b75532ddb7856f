"""Workers get what programs need of the server's environment, and none of its secrets."""

from __future__ import annotations

import pytest

from server.workers.environment import worker_environment

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
