"""What becomes of an input before a network sees it, as a manifest says it: `input.preprocess`.

    picture ─ resize ─→ crop, or padding ─→ channels in order ─→ (x · scale − mean) / std
    text    ─ prefix ─→ lower case ─→ the tokenizer's file ─→ cut to `length` tokens
    file    ─ its beginning and its end ─→ white space left out ─→ cut, or filled with `padding`

Preprocessing is part of a model: another resize than the one it was trained with costs it its accuracy, and
nothing says so. Pure, standard library only: the server reads manifests by this module too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

__all__ = [
    "INTERPOLATIONS",
    "PLAIN",
    "Frame",
    "Preprocess",
    "preprocess_from",
]

RESIZES: Final = ("stretch", "short_side", "long_side")
INTERPOLATIONS: Final = ("bilinear", "nearest", "bicubic", "lanczos", "box", "hamming")
CHANNELS: Final = ("rgb", "bgr", "grey")
PLACES: Final = ("centre", "corner")
MOST_SIDE: Final = 4096
_MOST_TOKENS: Final = 1 << 20
_MOST_PREFIX_CHARS: Final = 4096
_MOST_FILE_BYTES: Final = 1 << 16  # of each end of a file: a batch of them is in memory at once

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Frame:
    """How a picture becomes uint8 [height, width, 3]. Members of equal frames share one decoding.

    resize: "stretch": to both sides. "short_side": its short side to `size` pixels (0 = the frame's short
    side), then a centred crop, filled up where the picture is too small. "long_side": as large as fits, the
    rest filled. place: of the picture in the filled frame; "corner" is above, left.
    """

    height: int
    width: int
    resize: str = "stretch"
    size: int = 0
    interpolation: str = "bilinear"
    channels: str = "rgb"
    fill: tuple[int, int, int] = (0, 0, 0)
    place: str = "centre"

    def scaled(self, columns: int, rows: int) -> tuple[int, int]:
        """(width, height) to which a picture of columns × rows is resized, before crop and filling."""
        if self.resize == "stretch":
            return self.width, self.height
        if self.resize == "short_side":
            short = self.size or min(self.height, self.width)
            if columns <= rows:
                return short, max(1, int(short * rows / columns))
            return max(1, int(short * columns / rows)), short
        ratio = min(self.width / columns, self.height / rows)
        return max(1, round(columns * ratio)), max(1, round(rows * ratio))

    def origin(self, width: int, height: int) -> tuple[int, int]:
        """(left, top) in the frame of a picture that was scaled to this; below 0 where it is cropped."""
        if self.resize == "long_side" and self.place == "corner":
            return 0, 0
        # Half a pixel is rounded in the resized picture's own coordinates, as croppers do.
        return -round((width - self.width) / 2), -round((height - self.height) / 2)

    def back(self, columns: int, rows: int) -> Box:
        """(a, b, left, top): x of the picture as it came = (x of the frame − left) · a; y by b and top."""
        width, height = self.scaled(columns, rows)
        left, top = (0, 0) if self.resize == "stretch" else self.origin(width, height)
        return columns / width, rows / height, float(left), float(top)

    @property
    def is_plain(self) -> bool:
        """Whether it asks for no more than a size: any good way of resizing will do."""
        return self == Frame(self.height, self.width)


@dataclass(frozen=True, slots=True)
class Preprocess:
    """Of a picture: `Frame`'s fields and `scale`. Of a text: `tokenizer` to `prefix`. Of a file: the rest.

    scale: of a pixel from 0 to 255, before mean and std. tokenizer: a file of the model. length: tokens at
    most, 0 = as the tokenizer says. prefix: put before each text, such as "query: ".
    first_bytes, last_bytes: of a file, as numbers; padding: the number of a byte that it lacks. strip_bytes:
    within so many bytes white space is left out, at the start of the first and at the end of the last ones;
    0 = nowhere. least_bytes: a file with fewer, after that, has no answer.
    """

    resize: str = "stretch"
    size: int = 0
    interpolation: str = "bilinear"
    channels: str = "rgb"
    fill: tuple[int, int, int] = (0, 0, 0)
    place: str = "centre"
    scale: float = 1 / 255
    tokenizer: str = ""
    length: int = 0
    lower_case: bool = False
    prefix: str = ""
    first_bytes: int = 0
    last_bytes: int = 0
    padding: int = 0
    strip_bytes: int = 0
    least_bytes: int = 0

    @property
    def file_ends(self) -> tuple[int, int] | None:
        """How many bytes of a file's beginning and end are read; None where a row is no file's bytes."""
        if not self.first_bytes and not self.last_bytes:
            return None
        return max(self.first_bytes, self.strip_bytes), max(self.last_bytes, self.strip_bytes)

    def frame(self, height: int, width: int) -> Frame:
        """The frame of pictures of that size."""
        return Frame(
            height, width, self.resize, self.size, self.interpolation, self.channels, self.fill, self.place
        )

    def to_json(self) -> dict[str, Any]:
        """The fields that say something: {} of one that says nothing."""
        plain = asdict(PLAIN)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value != plain[name]
        }


PLAIN: Final = Preprocess()


def preprocess_from(content: object) -> Preprocess:
    """What `input.preprocess` of a manifest says; None says nothing. Raises `ValueError` with the field."""
    if content is None:
        return PLAIN
    if not isinstance(content, Mapping):
        raise ValueError("'input.preprocess' is not an object")
    unknown = sorted(set(map(str, content)) - set(asdict(PLAIN)))
    if unknown:
        raise ValueError(f"'input.preprocess' has no {unknown[0]!r}; there are {', '.join(asdict(PLAIN))}")
    return Preprocess(
        resize=_one_of(content, "resize", RESIZES),
        size=_whole(content, "size", MOST_SIDE),
        interpolation=_one_of(content, "interpolation", INTERPOLATIONS),
        channels=_one_of(content, "channels", CHANNELS),
        fill=_colour(content.get("fill", PLAIN.fill)),
        place=_one_of(content, "place", PLACES),
        scale=_scale(content.get("scale", PLAIN.scale)),
        tokenizer=_text(content, "tokenizer", 200),
        length=_whole(content, "length", _MOST_TOKENS),
        lower_case=_flag(content, "lower_case"),
        prefix=_text(content, "prefix", _MOST_PREFIX_CHARS),
        first_bytes=_whole(content, "first_bytes", _MOST_FILE_BYTES),
        last_bytes=_whole(content, "last_bytes", _MOST_FILE_BYTES),
        padding=_whole(content, "padding", _MOST_FILE_BYTES),
        strip_bytes=_whole(content, "strip_bytes", _MOST_FILE_BYTES),
        least_bytes=_whole(content, "least_bytes", _MOST_FILE_BYTES),
    )


def _one_of(content: Mapping[str, Any], field: str, known: tuple[str, ...]) -> str:
    value = content.get(field, known[0])
    if value not in known:
        raise ValueError(f"'input.preprocess.{field}' must be one of {', '.join(known)}, not {value!r}")
    return str(value)


def _whole(content: Mapping[str, Any], field: str, most: int) -> int:
    value = content.get(field, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"'input.preprocess.{field}' must be a whole number to {most}, not {value!r}")
    return value


def _colour(value: object) -> tuple[int, int, int]:
    if isinstance(value, list | tuple) and len(value) == 3:
        red, green, blue = value
        if all(type(level) is int and 0 <= level <= 255 for level in value):
            return red, green, blue
    raise ValueError(f"'input.preprocess.fill' must be three levels from 0 to 255, not {value!r}")


def _scale(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value:
        return float(value)
    raise ValueError(f"'input.preprocess.scale' must be a number that is not 0, not {value!r}")


def _text(content: Mapping[str, Any], field: str, most_chars: int) -> str:
    value = content.get(field, "")
    if not isinstance(value, str) or len(value) > most_chars:
        raise ValueError(f"'input.preprocess.{field}' must be a text of up to {most_chars} characters")
    return value


def _flag(content: Mapping[str, Any], field: str) -> bool:
    value = content.get(field, False)
    if not isinstance(value, bool):
        raise ValueError(f"'input.preprocess.{field}' must be true or false, not {value!r}")
    return value
