# SPDX-License-Identifier: GPL-2.0-or-later
"""What a fuzz target is, and how cases of it are run."""

from __future__ import annotations

import random
import resource
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st

CASE_CPU_SECONDS = 5.0
"""What one case may take, of this process's own time: machines that run tests are slow at times."""
GROWTH_BYTES = 1 << 30
"""How much more memory than before all cases of a target may ever take."""

ENOUGH_CASES = 200
"""Of so many cases some must have been accepted (of the pickiest target one in 25 is): else nothing was tried
but refusing. A run of fewer cases goes on until one is."""
ENOUGH_FOR_MARKS = 2000
"""The same for each mark that a target must leave."""

Check = Callable[[random.Random, Path], bool]
"""One case. Returns whether the input was accepted; raises AssertionError, or whatever it must not raise."""


@dataclass(frozen=True, slots=True)
class Target:
    """Something that takes input from outside."""

    name: str
    what: str
    """What is fed to it, in a few words."""
    check: Check
    weight: int = 10
    """Share of all cases."""
    marks: Counter[str] = field(default_factory=Counter)
    """How often the cases came to certain places; the check counts them."""
    goals: tuple[str, ...] = ()
    """Marks that must be left: else the inputs did not get to what they are for."""


@dataclass(slots=True)
class Result:
    """What became of a target's cases."""

    cases: int = 0
    accepted: int = 0
    slowest_seconds: float = 0.0
    grown_bytes: int = 0
    failure: str = ""


def run(target: Target, folder: Path, cases: int, start: int) -> Result:
    """Run so many cases; stops at the first that fails, shrunk by hypothesis."""
    result = Result()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    target.marks.clear()

    def case(number: int) -> None:
        result.cases += 1
        began = time.process_time()
        try:
            result.accepted += target.check(random.Random(number), folder)
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)[-4:]
            places = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(frames))
            result.failure = f"case {number}: {type(error).__name__}: {str(error)[:1500]} [{places}]"
            raise
        took = time.process_time() - began
        result.slowest_seconds = max(result.slowest_seconds, took)
        if took > CASE_CPU_SECONDS:
            result.failure = f"case {number}: took {took:.1f} s"
            raise AssertionError(result.failure)

    @seed(start)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(st.integers(0, 2**63 - 1))
    def drawn(number: int) -> None:
        case(number)

    lacking = ""
    more = random.Random(start)
    try:
        drawn()
        while (lacking := _lacking(target, result)) and result.cases < _enough(target):
            case(more.getrandbits(63))
    except Exception as error:
        if not result.failure:
            result.failure = f"{type(error).__name__}: {error}"
    result.grown_bytes = max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)
    if not result.failure and result.grown_bytes > GROWTH_BYTES:
        result.failure = f"memory grew by {result.grown_bytes >> 20} MiB"
    if not result.failure and lacking:
        result.failure = f"none of {result.cases} cases was {lacking}"
    return result


def _lacking(target: Target, result: Result) -> str:
    """What has not come about yet that must."""
    missing = [] if result.accepted else ["accepted"]
    return " or ".join([*missing, *(goal for goal in target.goals if not target.marks[goal])])


def _enough(target: Target) -> int:
    return ENOUGH_FOR_MARKS if target.goals else ENOUGH_CASES


@contextmanager
def unchanged(*files: Path) -> Iterator[None]:
    """Nothing may be written to these."""
    before = [file.read_bytes() for file in files]
    yield
    assert [file.read_bytes() for file in files] == before, "input was changed"
