"""The inference server: asyncio, HTTP in front, worker processes behind. Never imports torch."""
