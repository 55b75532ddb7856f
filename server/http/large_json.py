"""Large JSON, read and written in a process of its own.

Python's parser holds its interpreter until it is done: 64 MiB take it most of a second, in which no other
request is read and no answer sent, in whatever thread it runs. So that much goes to another process, which
hands back columns of bytes. It starts when it is needed, one at a time, and ends with the server.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, TypeVar

from ml_udf.oip import InferRequest, InferResponse, WireError, decode_request, encode_response
from server.errors import BadOption, Overloaded
from server.http.body import JSON_BYTES, object_in

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["LargeJson"]

_ASIDE_BYTES = 64 << 10  # of what a request says beside its rows

T = TypeVar("T")


class LargeJson:
    """Reads requests and writes replies; `close` ends the process."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    async def json_object(self, request: Request) -> dict[str, Any]:
        """A body of any size as a JSON object. Raises `BadOption`, and `Overloaded` as `encode` does."""
        # Not `request.body()`: the request would hold on to it for as long as it is answered.
        body = b"".join([part async for part in request.stream()])
        if len(body) <= JSON_BYTES:
            return object_in(body)
        content, why = await self._run(_object, body)
        if content is None:
            raise BadOption(why)
        return content

    async def decode(self, body: bytes, header_length: str | None, max_elements: int) -> InferRequest:
        """`decode_request`. Raises as it does; `WireError` too for more than `max_elements` in a column of
        bytes, `Overloaded` where the process died.
        """
        return await self._run(_decode, body, header_length, max_elements)

    async def encode(self, response: InferResponse, request: InferRequest) -> tuple[bytes, dict[str, str]]:
        """`encode_response`. Raises as it does, and `Overloaded` where the process died."""
        asked = InferRequest([], request.outputs, request.id, request.parameters)
        return await self._run(encode_response, response, asked)

    def close(self) -> None:
        """End the process; what it is at is lost."""
        pool, self._pool = self._pool, None
        if pool is not None:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(wait=True, cancel_futures=True)

    async def _run(self, work: Callable[..., T], *arguments: object) -> T:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                1, multiprocessing.get_context("spawn"), initializer=_end_with_the_server
            )
        pool = self._pool
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work, *arguments)
        except BrokenProcessPool as exc:
            if self._pool is pool:
                self._pool = None
                pool.shutdown(wait=False)
            raise Overloaded(
                "the process that reads large JSON died of it; send binary tensors, or fewer rows"
            ) from exc


def _object(body: bytes) -> tuple[dict[str, Any] | None, str]:
    try:
        return object_in(body), ""
    except BadOption as error:  # as a text: exceptions of ours do not travel between processes
        return None, error.message


def _decode(body: bytes, header_length: str | None, max_elements: int) -> InferRequest:
    request = decode_request(body, header_length)
    outputs = [(output.name, output.parameters) for output in request.outputs]
    aside = json.dumps([request.parameters, outputs, request.id])
    if len(aside) > _ASIDE_BYTES or len(request.inputs) > 64:
        raise WireError("the request says too much beside its rows")
    for tensor in request.inputs:
        if isinstance(tensor.data, list) and len(tensor.data) > max_elements:
            raise WireError(f"tensor {tensor.name[:100]!r} has more than {max_elements} elements")
    return request


def _end_with_the_server() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
