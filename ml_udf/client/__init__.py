"""One statement's rows on their way to a server and back: the client that every engine shares."""

from __future__ import annotations

from ml_udf.client.client import Client
from ml_udf.client.function_info import FunctionInfo
from ml_udf.client.prediction import CallStats, Prediction
from ml_udf.config import Options

__all__ = ["CallStats", "Client", "FunctionInfo", "Options", "Prediction"]
