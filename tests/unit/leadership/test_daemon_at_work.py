# SPDX-License-Identifier: GPL-2.0-or-later
"""The whole daemon on simulated ports, in real time: it leads, answers clients, and obeys signals."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from controller.api.answers import Answers
from controller.api.client import ApiClient, ApiRefused
from controller.api.server import ApiServer
from controller.cluster.port import ClusterView, JobState
from controller.cluster.simulated import SlurmCosts, make_nodes, request_text
from controller.daemon import assembly, daemon, leadership
from controller.errors import ClusterUnavailable, NodeError, NotLeading
from controller.journal import JobFilter
from controller.loop import failures
from controller.nodes.protocol import LeaderInfo
from controller.nodes.simulated import NodeCosts
from controller.observe.observer import Observer
from controller.settings.loading import load_settings
from controller.simulation.snapshot_file import read_decision
from controller.simulation.virtual_time import VirtualClock
from tests.contract.troubled import TroubledCluster, TroubledNodes

SETTINGS = """
[journal]
path = "{folder}/journal.sqlite"
[log]
file = "{folder}/log"
[api]
listen = "127.0.0.1:0"
[loop]
interval_seconds = 0.05
[policy]
name = "{policy}"
[policy.gandiva]
slice_seconds = 0.5
"""


class Nodes(TroubledNodes):
    """Nodes that may obey another controller."""

    leader: LeaderInfo | None = None

    async def leaders(
        self, _soon_seconds: float, _deadline_seconds: float
    ) -> Mapping[str, LeaderInfo | None]:
        return {"n1": self.leader}

    async def lead(self, _deadline_seconds: float) -> Mapping[str, NodeError | None]:
        return {}


class Site:
    """A daemon with its simulated site, and a client of its API."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.path = folder, folder / "gandiva.toml"
        self.configure("gandiva")
        nodes = {node.name: node for node in make_nodes(["n1"], 1)}
        self.cluster = TroubledCluster(nodes, SlurmCosts(0.001, 0.01, 0.01))
        self.nodes = Nodes(self.cluster, NodeCosts(0.01, 0.01, 0.01))
        self.client = ApiClient("http://127.0.0.1:1")

        def api_server(listen: str, answers: Answers) -> ApiServer:
            server = ApiServer(listen, answers)
            self.client = ApiClient(f"http://127.0.0.1:{server.port}")
            return server

        monkeypatch.setattr(daemon, "open_cluster", lambda *_arguments, **_options: self.cluster)
        monkeypatch.setattr(daemon, "ssh_nodes", lambda *_arguments, **_options: self.nodes)
        monkeypatch.setattr(assembly, "ApiServer", api_server)
        monkeypatch.setattr(assembly, "SystemClock", VirtualClock)  # the clock of the simulated ports
        self.daemon = daemon.Daemon(self.path, load_settings(self.path))
        self.running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the daemon; returns when its first turn is done."""
        self.running = asyncio.create_task(self.daemon.run())
        await self.until(lambda: self.daemon._assembly.live.latest is not None)

    def configure(self, policy: str) -> None:
        """Write the settings."""
        self.path.write_text(SETTINGS.format(folder=self.folder, policy=policy))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Until it holds, 60 s at most. It may ask the API."""
        end = time.monotonic() + 60
        while not await asyncio.to_thread(holds):
            assert time.monotonic() < end
            await asyncio.sleep(0.05)


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    made = Site(tmp_path, monkeypatch)
    try:
        yield made
        assert made.running is not None
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(made.running, 60)
    finally:
        if made.running is not None:
            made.running.cancel()
        root.handlers[:] = handlers
        root.setLevel(level)


async def test_jobs_take_turns_and_clients_see_them(site: Site) -> None:
    await site.start()
    jobs = [site.cluster.submit(request_text(1), work_seconds=3.0, name=f"train-{i}") for i in range(2)]
    await site.until(lambda: site.client.status().jobs_by_phase.get("suspended") == 1)
    status = await asyncio.to_thread(site.client.status)
    assert status.policy == "gandiva" and status.healthy and status.ticks > 1
    await site.until(lambda: all(job.end_time for job in site.client.jobs(JobFilter()).jobs))
    found = (await asyncio.to_thread(site.client.jobs, JobFilter())).jobs
    assert [job.job_id for job in found] == jobs and sum(job.suspends for job in found) >= 1
    assert all(job.run_seconds > 2.9 for job in found)
    exported = site.daemon._assembly.metrics.registry.get_sample_value
    assert exported("gandiva_operations_total", {"kind": "place", "outcome": "done"}) == 2
    assert exported("gandiva_queue_wait_seconds_count") == 2


async def test_signals_reload_the_settings_and_record_a_decision(site: Site) -> None:
    await site.start()
    site.cluster.submit(request_text(1), work_seconds=1e9)
    await site.until(lambda: site.client.status().jobs_by_phase == {"running": 1})
    site.configure("fifo")
    signal.raise_signal(signal.SIGHUP)
    await site.until(lambda: site.client.status().policy == "fifo")
    signal.raise_signal(signal.SIGUSR1)
    await site.until(lambda: any(site.folder.glob("decision-*.json")))
    (file,) = site.folder.glob("decision-*.json")
    recorded = read_decision(file)
    assert recorded.policy.name == "fifo" and recorded.snapshot.changed.everything
    site.configure("nonsense")
    signal.raise_signal(signal.SIGHUP)
    await site.until(lambda: "settings not reloaded" in (site.folder / "log").read_text())
    assert (await asyncio.to_thread(site.client.status)).policy == "fifo", "the old settings stay in force"


async def test_a_reload_warns_of_deprecated_settings(site: Site) -> None:
    await site.start()
    site.path.write_text(site.path.read_text() + "[policy.tiresias-las]\nqueue_limits = [60]\n")
    signal.raise_signal(signal.SIGHUP)
    log = site.folder / "log"
    await site.until(lambda: log.exists() and "settings reloaded" in log.read_text())
    said = [line for line in log.read_text().splitlines() if "deprecated" in line]
    assert len(said) == 1 and "policy.tiresias-las.queue_limits" in said[0] and str(site.path) in said[0]


async def test_a_slurm_that_is_away_is_a_problem_until_it_answers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> ClusterView:
        raise ClusterUnavailable("no answer within 15 s")

    await site.start()
    site.cluster.submit(request_text(1), work_seconds=1e9)
    await site.until(lambda: site.client.status().jobs_by_phase == {"running": 1})
    with monkeypatch.context() as patched:
        patched.setattr(site.cluster, "observe", away)
        await site.until(lambda: not site.client.status().healthy)
        status = await asyncio.to_thread(site.client.status)
        assert status.problems == ["Slurm cannot be observed: no answer within 15 s"]
        assert status.jobs_by_phase == {"running": 1}
    await site.until(lambda: site.client.status().healthy)
    assert all(job.state is JobState.RUNNING for job in site.cluster.jobs.values())


async def test_a_bug_is_a_problem_that_users_see_and_the_daemon_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_arguments: object) -> None:
        raise KeyError("nobody expected this")

    await site.start()
    site.cluster.submit(request_text(1), work_seconds=1e9)
    await site.until(lambda: site.client.status().jobs_by_phase == {"running": 1})
    monkeypatch.setattr(failures, "OVER_SECONDS", 0.5)
    with monkeypatch.context() as patched:
        patched.setattr(Observer, "take", fails)
        await site.until(lambda: not site.client.status().healthy)
        (problem,) = (await asyncio.to_thread(site.client.status)).problems
        assert "nobody expected this" in problem and "please report it" in problem
    await site.until(lambda: site.client.status().healthy)


async def test_it_stands_by_while_the_nodes_obey_another_controller(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "NODE_POLL_SECONDS", 0.05)
    site.nodes.leader = LeaderInfo(controller="b:/j", seconds=7.0)
    started = asyncio.create_task(site.start())
    await site.until(lambda: "controller b:/j leads on node n1" in site.daemon._assembly.live.standby)
    with pytest.raises(ApiRefused, match="has not observed the cluster yet"):
        await asyncio.to_thread(site.client.status)
    site.nodes.leader = None
    await asyncio.wait_for(started, 60)
    site.nodes.leader = LeaderInfo(controller="b:/j", seconds=7.0)

    async def lost() -> ClusterView:
        monkeypatch.undo()
        raise NotLeading("node n1: controller b:/j leads here")

    monkeypatch.setattr(site.cluster, "observe", lost)
    await site.until(lambda: "controller b:/j leads on node n1" in site.daemon._assembly.live.standby)
    site.nodes.leader = None
    await site.until(lambda: site.daemon._assembly.live.latest is not None)
