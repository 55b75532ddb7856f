"""How the sources of vision models say what becomes of a picture → `input` of a manifest. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpu_worker.errors import ModelUnusable

__all__ = ["picture_input", "timm_input"]

_OF_PILLOW = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_TIMM_CROP = 0.875  # of the short side, where its config does not say
_CONVNEXT_WHOLE = 384  # from this size on ConvNeXT's pictures are stretched, below cropped


def picture_input(
    config: Mapping[str, Any], guesses: list[str], *, finds_boxes: bool = False
) -> dict[str, Any]:
    """Of a preprocessor_config.json of transformers. Raises `ModelUnusable` where it says no size.

    finds_boxes: so that nothing of a picture may be cut off. What is not said is guessed, and added to
    `guesses`.
    """
    preprocess: dict[str, Any] = {}
    size, crop = config.get("size"), config.get("crop_size")
    side = None if finds_boxes else _short_side(size)
    if config.get("do_resize") is False:
        guesses.append("its pictures are not resized by the source; here they are stretched to its size")
    if side is not None and "crop_pct" in config and not config.get("do_center_crop"):
        height, width = side, side
        if side < _CONVNEXT_WHOLE:
            preprocess = {"resize": "short_side", "size": int(side / float(config["crop_pct"]))}
    elif side is not None:
        height, width = _sides(crop) or (side, side)
        preprocess = {"resize": "short_side", "size": side}
        if not config.get("do_center_crop"):
            guesses.append(
                f"its pictures keep their shape at the source; here their middle {width}×{height} is shown"
            )
    else:
        found = _sides(size) or _sides(crop)
        if found is None and finds_boxes and (edge := _whole_number(size, "shortest_edge")):
            found = edge, edge
            guesses.append(
                f"its pictures keep their shape at the source; here they are stretched to {edge}×{edge}, and "
                "the boxes back; --size says another"
            )
        if found is None:
            raise ModelUnusable(
                f"preprocessor_config.json says no size of its pictures that is known: {size!r}"
            )
        height, width = found
        cropped = _sides(crop) if config.get("do_center_crop") else None
        if cropped not in (None, found):
            raise ModelUnusable(
                f"preprocessor_config.json stretches pictures to {width}×{height} and crops them then"
            )
    preprocess["interpolation"] = _OF_PILLOW.get(config.get("resample", 2), "bilinear")
    scale = float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0
    is_normalised = config.get("do_normalize", True)
    return {
        "form": "path",
        "height": height,
        "width": width,
        "mean": list(map(float, config.get("image_mean") or [0.5] * 3)) if is_normalised else [0.0] * 3,
        "std": list(map(float, config.get("image_std") or [0.5] * 3)) if is_normalised else [1.0] * 3,
        "preprocess": {**preprocess, "scale": scale},
    }


def timm_input(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a pretrained_cfg of timm: what its own evaluation does. Raises `ModelUnusable`."""
    channels, height, width = (config.get("input_size") or (3, 224, 224))[:3]
    if channels != 3:
        raise ModelUnusable(f"its pictures have {channels} channels; 3 can be served")
    crop, mode = float(config.get("crop_pct") or _TIMM_CROP), config.get("crop_mode") or "center"
    if mode == "center":
        preprocess: dict[str, Any] = {"resize": "short_side", "size": math.floor(min(height, width) / crop)}
    elif mode == "border":
        preprocess = {"resize": "long_side"}
    elif mode == "squash" and crop == 1.0:
        preprocess = {"resize": "stretch"}
    else:
        raise ModelUnusable(f"its pictures are cropped by {mode!r} with {crop:g}, which cannot be served")
    interpolation = str(config.get("interpolation") or "bilinear")
    return {
        "form": "path",
        "height": int(height),
        "width": int(width),
        "mean": list(map(float, config.get("mean") or (0.485, 0.456, 0.406))),
        "std": list(map(float, config.get("std") or (0.229, 0.224, 0.225))),
        "preprocess": {
            **preprocess,
            "interpolation": interpolation if interpolation in _OF_PILLOW.values() else "bilinear",
        },
    }


def _whole_number(size: object, name: str) -> int:
    value = size.get(name) if isinstance(size, Mapping) else None
    return value if isinstance(value, int) else 0


def _short_side(size: object) -> int | None:
    if isinstance(size, int):
        return size
    if (
        isinstance(size, Mapping)
        and isinstance(size.get("shortest_edge"), int)
        and "longest_edge" not in size
    ):
        return int(size["shortest_edge"])
    return None


def _sides(size: object) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    if (
        isinstance(size, Mapping)
        and isinstance(size.get("height"), int)
        and isinstance(size.get("width"), int)
    ):
        return int(size["height"]), int(size["width"])
    return None
