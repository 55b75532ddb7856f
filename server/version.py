"""The server's version: that of the package it is installed from."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["VERSION"]


def _installed() -> str:
    try:
        return version("ml_udf")
    except PackageNotFoundError:  # run from a checkout
        return "0+checkout"


VERSION = _installed()
