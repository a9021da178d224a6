# SPDX-License-Identifier: GPL-2.0-or-later
"""Two things done at the same time, of which none is left running when the other fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
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
