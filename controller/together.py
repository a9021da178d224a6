# SPDX-License-Identifier: GPL-2.0-or-later
"""Two things done at the same time, of which none is left running when the other fails; and one thing that is
done at once as far as it goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

log = logging.getLogger(__name__)

A = TypeVar("A")
B = TypeVar("B")


async def both(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Do both and return what both return.

    `asyncio.gather` would let one go on when the other fails, into whatever the caller does next. Here it is
    cancelled and waited for, and then the error goes on: that of the first, when both fail at once.

    Raises:
        Exception: whatever one of them raises.
    """
    tasks = (asyncio.ensure_future(first), asyncio.ensure_future(second))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()  # (does nothing to what is done)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [end for end in ends if isinstance(end, BaseException)]
    # What ended by itself says why; a cancellation only that it was told to.
    errors.sort(key=lambda error: isinstance(error, asyncio.CancelledError))
    for error in errors[1:]:
        if not isinstance(error, asyncio.CancelledError):
            log.info("failed too, at the same time: %s", error)
    if errors:
        raise errors[0]
    return tasks[0].result(), tasks[1].result()


def at_once(coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None] | None:
    """Do it now, up to where it has to wait; a task of this name does the rest. None: it is done.

    (As the eager tasks of Python 3.12, for what hardly ever waits and must not ask for the task it is in.)
    """
    try:
        waits_for = coroutine.send(None)
    except StopIteration:
        return None
    return asyncio.create_task(_Begun(coroutine, waits_for), name=name)


class _Begun(Coroutine[Any, Any, None]):
    """A coroutine that waits for something already, which its task has not been told yet."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._untold: list[Any] = [waits_for]

    def send(self, value: Any) -> Any:
        return self._untold.pop() if self._untold else self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        self._untold.clear()
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise NotImplementedError("a task's own")
