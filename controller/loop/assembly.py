# SPDX-License-Identifier: GPL-2.0-or-later
"""A controller put together from settings and ports: the daemon and the simulator use the same."""

from __future__ import annotations

from collections.abc import Callable

from controller.act.recorder import Recorder
from controller.act.recording import JournalRecorder
from controller.act.settings import ExecutorSettings
from controller.act.site import Site
from controller.journal.port import JournalPort
from controller.loop.loop import Controller, LoopSettings, Parts, Turn
from controller.loop.pacing import PaceSettings
from controller.model.clock import Clock
from controller.nodes.port import NodePort
from controller.observe.memory import Memory
from controller.observe.reading import RequestReader
from controller.policies.assemble import make_policy, priority_class
from controller.policies.protocol import Policy
from controller.settings.schema import Settings
from controller.slurm.port import ClusterPort
from controller.solver import SolverPort

REST_FACTOR = 3.0
"""Turns that are asked for early take a quarter of the time at most."""


def make_controller(
    settings: Settings,
    cluster: ClusterPort,
    nodes: NodePort,
    journal: JournalPort,
    clock: Clock,
    *,
    solver: SolverPort,
    policy: Policy | None = None,
    pace: PaceSettings | None = None,
    listen: Callable[[Recorder], Recorder] = lambda recorder: recorder,
    publish: Callable[[Turn], None] = lambda _turn: None,
    report_conditions: Callable[[tuple[str, ...]], None] = lambda _sentences: None,
) -> Controller:
    """The controller, which has taken over what the journal knows.

    Args:
        solver: of the problems that plans state. The caller closes it.
        policy: in place of the one that the settings name.
        pace: in place of the settings' own, such as a simulation's.
        listen: gets the recorder that writes to the journal, and returns the one that operations tell.
        publish: called after every turn.
        report_conditions: called with all sentences of what is wrong, whenever these change.

    Raises:
        SettingsError: the policy cannot be made from the settings.
        JournalError: the journal cannot be read.
    """
    recorder = listen(JournalRecorder(journal))
    requests = RequestReader(
        lambda job_id, message: recorder.event("invalid-request", message, clock.now(), job_id),
        settings.requests,
    )
    site = Site(cluster, nodes, clock, Memory(), recorder, executor_settings(settings))
    parts = Parts(
        cluster=cluster,
        nodes=nodes,
        policy_name=settings.policy.name,
        policy=make_policy(settings.policy) if policy is None else policy,
        journal=journal,
        recorder=recorder,
        clock=clock,
        requests=requests,
        solver=solver,
        priority_class=priority_class(settings.policy),
        publish=publish,
        report_conditions=report_conditions,
    )
    return Controller(parts, site, loop_settings(settings, pace))


def use_settings(controller: Controller, settings: Settings, policy: Policy) -> None:
    """Go on with other settings, and with a policy made from them, from the next turn on."""
    controller.settings = loop_settings(settings)
    controller.executor.site.settings = executor_settings(settings)
    controller.observer.priority_class = priority_class(settings.policy)
    controller.requests.use(settings.requests)
    controller.use(settings.policy.name, policy)


def executor_settings(settings: Settings) -> ExecutorSettings:
    """The part of the settings that operations read."""
    suspend = settings.suspend
    return ExecutorSettings(
        suspend_in_slurm=suspend.mode == "slurm",
        default_method=settings.requests.suspend,
        transparent_fallback=suspend.transparent_fallback,
        step_deadline_seconds=suspend.step_deadline_seconds,
        offload_deadline_seconds=suspend.offload_deadline_seconds,
        resume_deadline_seconds=suspend.resume_deadline_seconds,
        start_deadline_seconds=suspend.start_deadline_seconds,
        residual_limit_bytes=suspend.residual_limit_bytes,
        residual_fraction=suspend.residual_fraction,
        release_context=suspend.release_context,
        retry_after_seconds=suspend.retry_after_seconds,
        unsuspendable=suspend.unsuspendable,
        unsuspendable_tries=suspend.unsuspendable_tries,
        preempt_exempt_ratio=suspend.preempt_exempt_ratio,
    )


def loop_settings(settings: Settings, pace: PaceSettings | None = None) -> LoopSettings:
    """The part of the settings that the loop reads."""
    return LoopSettings(
        pace=pace or PaceSettings(interval_seconds=settings.loop.interval_seconds, rest_factor=REST_FACTOR),
        observe_deadline_seconds=settings.nodes.observe_deadline_seconds,
        addresses=dict(settings.nodes.addresses),
    )
