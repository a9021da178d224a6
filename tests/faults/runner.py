# SPDX-License-Identifier: GPL-2.0-or-later
"""Run faults, group by group, and say how each ended."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from container.errors import MiniClusterError
from tests.faults.checks import check_round
from tests.faults.fault import Evidence, Fault, Result
from tests.faults.stage import FaultFailed, NotReached, Stage
from tests.faults.workload import WORKLOADS

LOGS = Path(__file__).resolve().parents[2] / "build" / "faults"


def run(stage: Stage, faults: Sequence[Fault], report: Callable[[list[Result]], None]) -> list[Result]:
    """All of them; `report` hears of each group when it is through."""
    results: list[Result] = []
    if len(faults) > 3:
        stage.say("what the jobs compute when nothing disturbs them")
        stage.learn_digests(WORKLOADS)
    for group, members in groupby(faults, key=lambda fault: fault.group):
        found = run_group(stage, group, list(members))
        report(found)
        results += found
    return results


def run_group(stage: Stage, group: str, faults: Sequence[Fault]) -> list[Result]:
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
            stage.gather_logs(LOGS / f"{group}-{number}".replace(" ", "-"))
            _make_whole(stage)
    stage.say(f"{group}: the books")
    try:
        wrong = check_round(stage)
    except (MiniClusterError, AssertionError) as error:
        wrong = [f"the state cannot be checked: {error}"]
    if wrong:
        stage.gather_logs(LOGS / f"{group}-end".replace(" ", "-"))
        text = "; ".join(wrong)
        results = [replace(r, passed=False, evidence=f"{r.evidence}; at the end: {text}") for r in results]
    return results


def _attempt(stage: Stage, fault: Fault) -> tuple[bool, Evidence]:
    try:
        return True, fault.run(stage)
    except NotReached:
        return False, Evidence("the place of the fault was not reached")
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
