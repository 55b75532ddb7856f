"""Files of UBJSON are walked before a library that recurses reads them."""

from __future__ import annotations

import struct

import pytest

from gpu_worker.networks.ubjson import MOST_DEPTH, check_ubjson


def length(number: int) -> bytes:
    return b"L" + struct.pack(">q", number)


def key(name: bytes) -> bytes:
    return length(len(name)) + name


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"{" + key(b"a") + b"S" + key(b"text") + key(b"b") + b"i\x01" + key(b"c") + b"Z}",
        b"{" + key(b"a") + b"[$d#" + length(2) + b"\0" * 8 + key(b"b") + b"[]}",
        b"{" + key(b"a") + b"[#" + length(2) + b"{}[TF]" + key(b"b") + b"[#" + length(0) + b"}",
        b"{" + (key(b"a") + b"{") * (MOST_DEPTH - 1) + b"}" * MOST_DEPTH,
    ],
)
def test_what_xgboost_may_write_passes(content: bytes) -> None:
    check_ubjson(content)


@pytest.mark.security
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{" + (key(b"a") + b"{") * MOST_DEPTH + b"}" * (MOST_DEPTH + 1), "nests more than"),
        (b"{" + key(b"a") + b"[" * 300_000, "nests more than"),
        (b"{" + key(b"a") + (b"[#" + length(1)) * 300_000, "nests more than"),
        (b"{" + key(b"a") + b"[", "ends before"),
        (b"{" + key(b"a") + b"[$d#" + length(9) + b"\0", "ends before"),
        (b"{" + key(b"a") + b"[$l#" + length(2) + b"\0", "ends before"),
        (b"{" + key(b"a") + b"[#" + length(-1), "-1 values follow"),
        (b"{" + length(1 << 60), "values follow"),
        (b"{" + key(b"a") + b"[$[#" + length(1), "no known type"),
        (b"{" + key(b"a") + b"N}", "begins no value"),
        (b"{U\x01a", "no length"),
        (b"{L\0", "ends before"),
        (b"{", "ends before"),
    ],
)
def test_what_would_end_its_reader_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_ubjson(content)
