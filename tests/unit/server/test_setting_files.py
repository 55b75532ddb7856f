"""The files that settings name: a pipe is read to its end, and for no longer than it may take."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from server.setting_files import read_setting


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def written() -> None:
        with pipe.open("w") as out:
            out.write("first, ")
            out.flush()
            time.sleep(0.05)
            out.write("last")

    writer = threading.Thread(target=written)
    writer.start()
    assert read_setting(pipe) == "first, last"
    writer.join()


def test_a_pipe_of_the_shell_is_read_although_its_writer_has_ended() -> None:
    reads, writes = os.pipe()
    os.write(writes, b"secret")
    os.close(writes)
    assert read_setting(Path(f"/dev/fd/{reads}")) == "secret"
    os.close(reads)


def test_a_pipe_that_is_not_written_to_its_end_is_told(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    both = os.open(pipe, os.O_RDWR)
    os.write(both, b"half")
    with pytest.raises(OSError, match="nobody writes to, or not to its end"):
        read_setting(pipe, pipe_s=0.05)
    os.close(both)


@pytest.mark.parametrize(("path", "said"), [("/dev/zero", "neither a file nor a pipe"), ("/", "directory")])
def test_what_has_no_end_or_no_text_is_told(path: str, said: str) -> None:
    with pytest.raises(OSError, match=said):
        read_setting(Path(path))
