"""The inference server: asyncio, HTTP in front, worker processes behind. Never imports torch."""

import sys

from server.compiled.finder import CoreMissing, install

try:
    install()  # before any of its modules is imported
except CoreMissing as missing:
    if sys.argv[:1] != ["-m"]:
        raise
    sys.exit(f"ml_udf: {missing}")  # of `python -m server`, who typed it reads it
