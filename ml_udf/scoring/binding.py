"""Which of a function's inputs takes a column. Pure."""

from __future__ import annotations

from dataclasses import replace

from ml_udf.client.function_info import FunctionInfo
from ml_udf.client.statement import Binding
from ml_udf.scoring.layout import Kind

__all__ = ["bound"]


def bound(binding: Binding, info: FunctionInfo, kind: Kind | None) -> Binding:
    """A function of ours whose rows are paths takes a column of bytes by another input: encoded images."""
    if kind == "bytes" and binding.input_name is None and info.ours and info.form == "path":
        return replace(binding, input_name="image")
    return binding
