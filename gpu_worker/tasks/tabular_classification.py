"""Which of a model's classes a row of a table belongs to."""

from __future__ import annotations

from gpu_worker.tasks.classification import classification

__all__ = ["TABULAR_CLASSIFICATION"]

TABULAR_CLASSIFICATION = classification("tabular-classification", "row")
