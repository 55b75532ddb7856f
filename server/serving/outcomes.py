"""How what is under way ends: once, with a result or an error, of which one listener hears a turn later.

All that ended in a turn of the loop is told together, by one callback of the loop: a row that is answered
takes neither a future nor a closure. Who would rather await it has a future, made when it is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

__all__ = ["Outcomes", "UnderWay"]

_Result = TypeVar("_Result")


class Outcomes:
    """Tells listeners. On one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """loop: None = the one that runs."""
        self.loop = loop or asyncio.get_running_loop()
        self._ended: list[UnderWay[Any]] = []

    def put(self, ended: UnderWay[Any]) -> None:
        """Its listener hears of it in the next turn, after those that were put before."""
        if not self._ended:
            self.loop.call_soon(self._tell)
        self._ended.append(ended)

    def _tell(self) -> None:
        ended, self._ended = self._ended, []  # what ends meanwhile is the next turn's
        for one in ended:
            try:
                one.tell_listener()
            except Exception as error:
                self.loop.call_exception_handler(
                    {"message": "an outcome could not be told", "exception": error}
                )


@dataclass(slots=True, eq=False)
class UnderWay(Generic[_Result]):
    """Something that somebody waits for. outcome: how it ended; a `CancelledError` where nobody is told."""

    outcomes: Outcomes
    outcome: _Result | BaseException | None = field(default=None, init=False)
    _listener: Callable[[Any, Any], object] | None = field(default=None, init=False)
    _about: Any = field(default=None, init=False)
    _future: asyncio.Future[_Result] | None = field(default=None, init=False)

    @property
    def done(self) -> bool:
        """Whether nobody waits any more: answered, failed, or its client gone."""
        return self.outcome is not None

    @property
    def future(self) -> asyncio.Future[_Result]:
        """Its outcome, to be awaited. Cancelling that does not end it."""
        if self._future is None:
            self._future = self.outcomes.loop.create_future()
            if self.outcome is not None:
                self._settle(self._future, self.outcome)
        return self._future

    @property
    def result(self) -> _Result:
        """What it ended with. Raises the error where it ended with one."""
        assert self.outcome is not None, "it has ended"
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def listen(self, listener: Callable[[Self, Any], object], about: Any) -> None:  # noqa: ANN401  # the listener's own
        """Have `listener(self, about)` called once it has ended, in another turn; there is one listener."""
        self._listener, self._about = listener, about
        if self.outcome is not None:
            self.outcomes.put(self)

    def tell_listener(self) -> None:
        """Call the listener: for `Outcomes`."""
        listener, about = self._listener, self._about
        self._listener = self._about = None  # who listens holds on to what it listens to: no circle
        if listener is not None:
            listener(self, about)

    def finish(self, result: _Result) -> None:
        """It ends with a result; an ended one stays as it is."""
        if self.outcome is None:
            self._end(result)

    def fail(self, error: BaseException) -> None:
        """It ends with an error; an ended one stays as it is."""
        if self.outcome is None:
            self._end(error)

    def cancel(self) -> None:
        """It ends, and no listener hears of it."""
        if self.outcome is None:
            self._listener = self._about = None
            self._end(asyncio.CancelledError())

    def _end(self, outcome: _Result | BaseException) -> None:
        self.outcome = outcome
        if self._listener is not None:
            self.outcomes.put(self)
        if self._future is not None:
            self._settle(self._future, outcome)

    @staticmethod
    def _settle(future: asyncio.Future[_Result], outcome: _Result | BaseException) -> None:
        if future.done():  # who awaited it was cancelled
            return
        if isinstance(outcome, asyncio.CancelledError):
            future.cancel()
        elif isinstance(outcome, BaseException):
            future.set_exception(outcome)
            future.exception()  # it is known, whether or not anybody awaits it
        else:
            future.set_result(outcome)
