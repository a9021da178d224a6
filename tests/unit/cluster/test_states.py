# SPDX-License-Identifier: GPL-2.0-or-later
"""What Slurm's words about jobs and nodes mean."""

from __future__ import annotations

import pytest

from controller.cluster.port import JobState
from controller.cluster.states import (
    REQUEUED_HELD,
    USER_HOLD_BEGIN,
    begin_reached,
    held_by_other,
    is_final,
    job_state,
    node_up,
    state_name,
)


@pytest.mark.parametrize(
    ("words", "state", "name"),
    [
        (["PENDING"], JobState.PENDING, "PENDING"),
        (["PENDING", "COMPLETING"], JobState.COMPLETING, "COMPLETING"),
        (["COMPLETED", "COMPLETING"], JobState.COMPLETING, "COMPLETING"),
        (["RUNNING", "CONFIGURING"], JobState.CONFIGURING, "CONFIGURING"),
        (["SUSPENDED"], JobState.SUSPENDED, "SUSPENDED"),
        (["TIMEOUT"], JobState.ENDED, "TIMEOUT"),
        (["PENDING", "REQUEUE_HOLD"], JobState.PENDING, "PENDING"),
        (["RUNNING", "SIGNALING"], JobState.RUNNING, "RUNNING"),
    ],
)
def test_base_states_and_flags(words: list[str], state: JobState, name: str) -> None:
    assert job_state(words) is state
    assert state_name(words) == name


def test_a_flag_of_a_later_slurm_does_not_hide_the_base_state() -> None:
    assert job_state(["RUNNING", "SOMETHING_NEW"]) is JobState.RUNNING


def test_unknown_words_alone_mean_nothing() -> None:
    assert job_state(["SOMETHING_NEW"]) is None
    assert job_state([]) is None


@pytest.mark.parametrize(
    ("word", "final"),
    [
        ("COMPLETED", True),
        ("CANCELLED by 1000", True),
        ("OUT_OF_MEMORY", True),
        ("A_STATE_OF_A_LATER_SLURM", True),
        ("CANCELLED+", True),
        ("COMPLETING", False),
        ("REQUEUED", False),
        ("SUSPENDED", False),
        ("STOPPED", False),
        ("", False),
    ],
)
def test_which_states_are_final(word: str, final: bool) -> None:
    """What is not known is: a trace has such jobs, and a report asks sacct no more about them."""
    assert is_final(word) is final


@pytest.mark.parametrize("words", [["IDLE"], ["MIXED"], ["ALLOCATED", "PLANNED"], ["MIXED", "COMPLETING"]])
def test_nodes_that_take_jobs(words: list[str]) -> None:
    assert node_up(words)


@pytest.mark.parametrize(
    "words",
    [
        ["DOWN"],
        ["IDLE", "DRAIN"],
        ["MIXED", "NOT_RESPONDING"],
        ["ALLOCATED", "MAINTENANCE"],
        ["IDLE", "FAIL"],
        ["UNKNOWN"],
        ["IDLE", "POWERED_DOWN"],
        ["IDLE", "REBOOT_REQUESTED"],
        ["IDLE", "RESERVED"],
        ["idle*"],
        [],
    ],
)
def test_nodes_that_take_none(words: list[str]) -> None:
    assert not node_up(words)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["PENDING"], "JobHeldUser"),
        (["PENDING"], "job requeued in held state"),
        (["PENDING", "REQUEUE_HOLD"], "JobHeldUser"),  # released, and held by us again
        (["PENDING"], "BadConstraints"),  # of our binding
    ],
)
def test_our_own_holds(words: list[str], reason: str) -> None:
    assert not held_by_other(words, reason, None)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["PENDING"], "JobHeldAdmin"),
        (["PENDING"], "JobHoldMaxRequeue"),
        (["PENDING"], "launch failed requeued held"),
        (["PENDING", "SPECIAL_EXIT"], "JobHeldUser"),
        (["SPECIAL_EXIT"], "JobHeldUser"),
        (["PENDING", "REQUEUE_HOLD"], "job requeued in held state"),
    ],
)
def test_holds_of_operators_and_of_slurm(words: list[str], reason: str) -> None:
    assert held_by_other(words, reason, None)


def test_a_begin_time_beyond_all_plans_is_a_users_hold() -> None:
    assert held_by_other(["PENDING"], "JobHeldUser", float(USER_HOLD_BEGIN))
    assert not held_by_other(["PENDING"], "JobHeldUser", float(USER_HOLD_BEGIN - 1))


def test_a_users_begin_time_is_waited_for() -> None:
    assert begin_reached(None, 0, "", now=1000)
    assert begin_reached(1000, 0, "", now=1000)
    assert not begin_reached(1001, 900, "", now=1000)


def test_slurms_delay_after_a_requeue_of_ours_is_not_waited_for() -> None:
    assert begin_reached(begin_time=1121, submit_time=1000, reason=REQUEUED_HELD, now=1000)
    assert not begin_reached(begin_time=90_000, submit_time=1000, reason=REQUEUED_HELD, now=1000)


def test_slurms_delay_after_a_requeue_of_its_own_is_waited_for() -> None:
    assert not begin_reached(begin_time=1121, submit_time=1000, reason="BeginTime", now=1000)
    assert not begin_reached(begin_time=1121, submit_time=1000, reason="JobHeldUser", now=1000)
