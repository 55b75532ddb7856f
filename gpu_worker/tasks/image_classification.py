"""Which of a model's classes a picture shows."""

from __future__ import annotations

from gpu_worker.tasks.classification import classification

__all__ = ["IMAGE_CLASSIFICATION"]

IMAGE_CLASSIFICATION = classification("image-classification", "path", "image", "tensor")
