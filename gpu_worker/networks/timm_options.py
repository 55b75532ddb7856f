"""Options of a timm model: what a manifest may give to timm's `create_model`. They come from anybody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpu_worker.errors import ModelUnusable

__all__ = ["check_options"]

# They name files or addresses: the weights are those of the model, and no others.
_REFUSED: Final = frozenset(
    (
        *("cache_dir", "checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"),
        *("pretrained_model_args", "pretrained_strict"),
    )
)


def check_options(options: Mapping[str, Any], where: str) -> None:
    """Raises `ModelUnusable` for an option that does more than shape the architecture. where: who says it."""
    for name, value in options.items():
        numbers = value if isinstance(value, list) else ()  # img_size is [224, 224]
        is_plain = isinstance(value, str | int | float | bool) or bool(numbers)
        if name in _REFUSED or not is_plain or not all(isinstance(each, int | float) for each in numbers):
            raise ModelUnusable(
                f"{where}: the option {name!r} cannot be given to a timm model: options are numbers, lists "
                "of them, texts and booleans that shape its architecture, and name no files"
            )
