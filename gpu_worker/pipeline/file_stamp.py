"""Whether the file that a path names now is still the same, without reading it: by its stamp.

    stamp = device, inode, size, time of the last write, time of the last change of any kind

The second time is the kernel's, which nobody can set: a write after which the first time was set back shows
in it. A stamp tells versions of a file apart only once the clock has ticked since the last of them: a file
that was changed a moment ago has none yet (as git treats an index that is as young as its files).
"""

from __future__ import annotations

import os
import struct

__all__ = ["stamp_of"]

_STAMP = struct.Struct("<QQQqq")
_SECOND_NS = 1_000_000_000
# A filesystem whose times are whole seconds may count in steps of two of them (FAT); others tick with the
# kernel's clock, each 10 ms at the latest.
_COARSE_NS, _FINE_NS = 2 * _SECOND_NS + _SECOND_NS // 10, _SECOND_NS // 10


def stamp_of(found: os.stat_result, now_ns: int) -> bytes:
    """The stamp of a file, of which was asked at `now_ns` (Unix time); b"" if it may have changed since and
    look the same.
    """
    tick_ns = _FINE_NS if found.st_ctime_ns % _SECOND_NS else _COARSE_NS
    if found.st_ctime_ns + tick_ns > now_ns:
        return b""
    return _STAMP.pack(
        found.st_dev & 0xFFFFFFFFFFFFFFFF, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )
