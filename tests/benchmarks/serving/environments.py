"""A virtual environment for each server, with pinned packages, below `.build/serving`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(".build/serving")

# What runs the model, the same for all.
_RUNTIME = ("torch==2.13.0", "pillow==13.0.0", "simplejpeg==1.9.0", "safetensors>=0.5", "numpy")
_PATIENCE_S = 900.0


class NotInstalled(Exception):
    """A server that cannot be had here; the text says why."""


def python_of(name: str, packages: Sequence[str], interpreter: str) -> Path:
    """The Python of the environment `name`, made now if it is not there. Raises `NotInstalled`."""
    folder = ROOT / name
    python = (folder / "bin" / "python").absolute()
    stamp = folder / ".installed"
    wanted = " ".join((*packages, *_RUNTIME))
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    _run([interpreter, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *packages])
    _run([*pip, *packages, *_RUNTIME])
    stamp.write_text(wanted)
    return python


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NotInstalled(str(exc)) from exc
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
        raise NotInstalled((errors or ["no reason was given"])[-1][:300])
