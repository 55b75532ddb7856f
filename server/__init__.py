"""The inference server: asyncio, HTTP in front, worker processes behind. Never imports torch."""

from server.compiled.finder import install

install()  # before any of its modules is imported
