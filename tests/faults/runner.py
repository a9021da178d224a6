# SPDX-License-Identifier: GPL-2.0-or-later
"""Run faults, round by round, and say how each ended."""

from __future__ import annotations

import math
import queue
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from container.errors import MiniClusterError
from tests.faults.checks import check_round
from tests.faults.fault import Evidence, Fault, Result
from tests.faults.stage import FaultFailed, NotReached, Stage
from tests.faults.workload import WORKLOADS

LOGS = Path(__file__).resolve().parents[2] / "build" / "faults"
ROUND_FAULTS = 13
"""No more share a round: so the clusters have about equal work, and the time in trouble, which the accounts
are allowed to differ by, does not add up to minutes."""
Report = Callable[[list[Result]], None]


def rounds(faults: Sequence[Fault]) -> list[list[Fault]]:
    """Faults that share a round: those of a group, in equal parts where it is long. The longest come first,
    so that several clusters end at about the same time."""
    found = []
    for _, members in groupby(faults, key=lambda fault: fault.group):
        group = list(members)
        parts = math.ceil(len(group) / ROUND_FAULTS)
        size = math.ceil(len(group) / parts)
        found += [group[start : start + size] for start in range(0, len(group), size)]
    return sorted(found, key=lambda group: -sum(fault.times for fault in group))


def run(stages: Sequence[Stage], faults: Sequence[Fault], report: Report) -> list[Result]:
    """All of them, on several clusters at once; `report` hears of each round when it is through. Returns the
    results in the order of the faults; those are missing whose cluster broke, which is reported too."""
    waiting: queue.SimpleQueue[tuple[int, list[Fault]]] = queue.SimpleQueue()
    for number, group in enumerate(rounds(faults)):
        waiting.put((number, group))
    results: dict[str, Result] = {}

    def work(stage: Stage) -> None:
        stage.prepare()
        if len(faults) > 3:
            stage.say("what the jobs compute when nothing disturbs them")
            stage.learn_digests(WORKLOADS)
        while True:
            try:
                number, group = waiting.get_nowait()
            except queue.Empty:
                return
            found = run_group(stage, group, LOGS / f"{number}-{group[0].group}".replace(" ", "-"))
            results.update({result.fault.name: result for result in found})
            report(found)

    pool = ThreadPoolExecutor(len(stages))
    futures = [pool.submit(work, stage) for stage in stages]
    try:
        broken = [future.exception() for future in futures]
    finally:
        pool.shutdown(wait=False)
        for stage in stages:
            stage.close()  # after an interrupt: so they end
    for stage, error in zip(stages, broken, strict=True):
        if error is not None:
            text = "".join(traceback.format_exception(error))
            stage.say(f"mini cluster {stage.cluster.name} is left out: {text}")
    return [results[fault.name] for fault in faults if fault.name in results]


def run_group(stage: Stage, faults: Sequence[Fault], logs: Path) -> list[Result]:
    """One round. What the look at its end finds counts against every fault of it."""
    stage.begin_round()
    results = []
    for number, fault in enumerate(faults):
        stage.say(fault.name)
        began = time.monotonic()
        passed, evidence = _attempt(stage, fault)
        seconds = time.monotonic() - began
        results.append(Result(fault, passed, evidence.text, seconds, evidence.converged_seconds))
        stage.say(f"{'passed' if passed else 'FAILED'} ({seconds:.1f} s): {evidence.text}")
        if not passed:
            stage.gather_logs(logs.with_name(f"{logs.name}-{number}"))
            _make_whole(stage)
    stage.say(f"{faults[0].group}: the books")
    try:
        wrong = check_round(stage)
    except (MiniClusterError, AssertionError) as error:
        wrong = [f"the state cannot be checked: {error}"]
    if wrong:
        stage.gather_logs(logs.with_name(f"{logs.name}-end"))
        text = "; ".join(wrong)
        results = [replace(r, passed=False, evidence=f"{r.evidence}; at the end: {text}") for r in results]
    return results


def _attempt(stage: Stage, fault: Fault) -> tuple[bool, Evidence]:
    try:
        return True, fault.run(stage)
    except NotReached as reason:
        return False, Evidence(f"the place of the fault was not reached: {reason}")
    except (FaultFailed, AssertionError, MiniClusterError) as error:
        return False, Evidence(str(error))
    except Exception:
        return False, Evidence(f"the test itself failed: {traceback.format_exc(limit=3)}")


def _make_whole(stage: Stage) -> None:
    """After a failure: what the test has broken is started again, so that the others have a chance."""
    stage.withdraw_order()
    stage.cluster.start_services()
    if not stage.controller_running():
        stage.start_controller()
