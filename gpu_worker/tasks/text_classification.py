"""Which of a model's classes a text belongs to."""

from __future__ import annotations

from gpu_worker.tasks.classification import classification

__all__ = ["TEXT_CLASSIFICATION"]

TEXT_CLASSIFICATION = classification("text-classification", "text")
