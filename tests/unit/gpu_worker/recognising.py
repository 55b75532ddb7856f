"""A recognised model as a folder that a worker loads."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from gpu_worker.device import Device
from gpu_worker.networks.recognised import Recognised

__all__ = ["CPU", "stored"]

CPU = Device("cpu", "", 1 << 30, 1)


def stored(found: Recognised, directory: Path, name: str) -> Path:
    """The folder of version 1: its files, each with its hash, and model.json."""
    folder = directory / "models" / name / "1"
    folder.mkdir(parents=True)
    listed = []
    for file, (source, role) in found.files.items():
        if isinstance(source, bytes):
            (folder / file).write_bytes(source)
        else:
            shutil.copyfile(source, folder / file)
        sha256 = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        listed.append({"name": file, "sha256": sha256, "role": role})
    manifest = {"format": 1, "name": name, "version": 1, "files": listed, **found.manifest}
    (folder / "model.json").write_text(json.dumps(manifest))
    return folder
