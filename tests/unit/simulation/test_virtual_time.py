# SPDX-License-Identifier: GPL-2.0-or-later
"""The event loop whose time jumps."""

from __future__ import annotations

import asyncio
import logging

import pytest

from controller.simulation.virtual_time import (
    MOST_CANCELLED,
    SETTLED_SECONDS,
    SimulationDeadlock,
    VirtualTimeLoop,
    run_virtual,
)


def test_time_jumps_to_the_next_timer() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        seen = [loop.time()]
        for seconds in (0.5, 0, 86400 * 400):
            await asyncio.sleep(seconds)
            seen.append(loop.time())
        return seen

    assert run_virtual(main(), start=100.0) == [100.0, 100.5, 100.5, 100.5 + 86400 * 400]


def test_timers_of_one_instant_run_in_the_order_they_were_made() -> None:
    async def main() -> str:
        loop, said = asyncio.get_running_loop(), ""

        def say(word: str) -> None:
            nonlocal said
            said += word

        for word in "abcdefg":
            loop.call_at(7.0, say, word)
        loop.call_at(6.0, say, "first ")
        await asyncio.sleep(8)
        return said

    assert run_virtual(main()) == "first abcdefg"


def test_what_is_settled_is_what_nothing_changes_at_this_time_any_more() -> None:
    async def main() -> tuple[str, float]:
        loop, said = asyncio.get_running_loop(), ""

        async def say(steps: int) -> None:
            nonlocal said
            for step in range(steps):
                said += str(step)
                await asyncio.sleep(0)

        task = asyncio.create_task(say(5))
        await asyncio.sleep(SETTLED_SECONDS)
        assert task.done()
        return said, loop.time()

    assert run_virtual(main()) == ("01234", 0.0)
    assert run_virtual(main(), start=7.5) == ("01234", 7.5)


def test_what_no_timer_can_wake_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationDeadlock):
        run_virtual(main())


def test_timeouts_tasks_and_gather_work_as_ever() -> None:
    async def late(word: str, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return word

    async def main() -> tuple[tuple[str, str], float]:
        one, other = await asyncio.gather(late("a", 3), asyncio.create_task(late("b", 1), name="b"))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(late("c", 60), timeout=10)
        return (one, other), asyncio.get_running_loop().time()

    assert run_virtual(main()) == (("a", "b"), 13.0)


def test_an_error_that_nobody_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with caplog.at_level(logging.ERROR):
        run_virtual(main())
    assert "ZeroDivisionError" in caplog.text


def test_cancelled_timers_are_let_go() -> None:
    """A job that is preempted again and again cancels the timer of its end each time."""
    loop = VirtualTimeLoop()

    async def main() -> int:
        most = 0
        loop.call_later(1e5, print)  # (one that is due before all of these)
        for _ in range(20 * MOST_CANCELLED):
            loop.call_later(1e6, print).cancel()
            await asyncio.sleep(0.001)
            most = max(most, len(loop._timers))
        return most

    try:
        assert loop.run_until_complete(main()) <= MOST_CANCELLED + 3
    finally:
        loop.close()
