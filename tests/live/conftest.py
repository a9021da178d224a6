# SPDX-License-Identifier: GPL-2.0-or-later
"""Live tests: a real Slurm in containers, one mini cluster for the run, or one for each worker (-n N).

    pytest tests/live -m live          make images where needed, bring the cluster up, test, take it down
    … -n 2 --dist worksteal            half of them at a time each: they wait most of the time
    KEEP=1 …                           leave it running for a look (gandiva-cluster status tells its name)
    GANDIVA_CLUSTER=dev …              use a cluster that runs already, and leave it running
    RELEASE=trixie …                   Slurm of another release of Debian (forky has 26.05, trixie 24.11)
    ADAPTER=command …                  the controller speaks to Slurm with that adapter
    … -m "live and smoke"              a few of them that touch every part

Without `-m live` these tests are skipped. With it, a missing Docker engine is an error, not a skip: nobody
should believe that they ran. Logs of every host are in build/logs/ after a failure.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from container import engine
from container.cluster import MiniCluster, remove_leftovers
from container.errors import EngineError, MiniClusterError
from container.spec import ClusterSpec
from tests.live.gpu_history import overlaps, unplanned
from tests.live.support import Site

LOGS = Path(__file__).resolve().parents[2] / "build" / "logs"
_PREFIX = "test-"
_IDLE_SECONDS = 60
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
_FAILED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is in this folder as live, and skip it unless it was asked for."""
    asked = re.search(r"(?<!not )\blive\b", config.getoption("markexpr") or "") is not None
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.live)
            if not asked:
                item.add_marker(pytest.mark.skip(reason="live test: run with -m live (needs Docker)"))


@pytest.fixture(scope="session")
def engine_ready() -> None:
    """Docker answers, and clusters of runs that were killed are gone."""
    try:
        remove_leftovers(engine.connect(report=print), _PREFIX)
    except EngineError as error:
        pytest.fail(f"live tests need Docker: {error}", pytrace=False)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[MiniCluster]:
    """The cluster of this test run: two nodes with four GPUs each, three users."""
    existing = os.environ.get("GANDIVA_CLUSTER")
    if existing:
        if os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") != "1":
            pytest.fail(f"GANDIVA_CLUSTER={existing}: one cluster takes one test at a time", pytrace=False)
        yield MiniCluster.attach(existing)
        return
    request.getfixturevalue("engine_ready")
    adapter = os.environ.get("ADAPTER")
    spec = ClusterSpec(
        name=own_name(),
        release=os.environ.get("RELEASE") or "forky",
        controller={"cluster": {"adapter": adapter}} if adapter else {},
    )
    with running(spec, request.session) as mini:
        yield mini


def own_name(suffix: str = "") -> str:
    """The name of a cluster of this run."""
    return f"{_PREFIX}{os.getpid()}{suffix}"


@contextlib.contextmanager
def running(spec: ClusterSpec, session: pytest.Session) -> Iterator[MiniCluster]:
    """A cluster from its start to its end; logs of its hosts are gathered where a test of the run failed."""
    mini = MiniCluster(spec, report=print)
    try:
        mini.up()
    except MiniClusterError as error:
        mini.gather_logs(LOGS / f"up{_WORKER}")
        mini.down()
        logs = LOGS / f"up{_WORKER}"
        pytest.fail(f"the mini cluster does not come up (logs in {logs}): {error}", pytrace=False)
    try:
        yield mini
    finally:
        if session.testsfailed:
            mini.gather_logs(LOGS / f"end{_WORKER}")
        if os.environ.get("KEEP"):
            print(f"\nkept: gandiva-cluster sh login --name {mini.name}")
        else:
            mini.down()


@pytest.fixture(autouse=True)
def quiet(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test: no job left, every node idle. After one that breaks something, or failed: all daemons
    run, and the next one starts a controller of its own."""
    yield
    if "cluster" not in request.fixturenames:
        return
    mini: MiniCluster = request.getfixturevalue("cluster")
    failed = request.node.stash.get(_FAILED, False)
    if failed:
        mini.gather_logs(LOGS / re.sub(r"[^\w.-]+", "_", request.node.name))
    if failed or request.node.get_closest_marker("breaks"):
        mini.stop_controller()
        mini.start_services()
    restore(mini)


@pytest.fixture
def site(request: pytest.FixtureRequest, cluster: MiniCluster) -> Iterator[Site]:
    """The cluster with a Gandiva controller that leads, and an empty history of the mock GPUs.

    The controller has quick settings, with those tables replaced that marks `settings` name. One that runs
    with these from the test before stays.

    Whatever the test was about: two jobs may have held memory on one GPU at the same instant only where the
    controller had decided that they share it.
    """
    log_end_bytes = cluster.controller_log_bytes()
    site = Site(cluster, nodes=cluster.spec.node_names, log_end_bytes=log_end_bytes)
    for node in site.nodes:
        cluster.exec(node, ["mockgpu", "clear-history"])
    marks = reversed(list(request.node.iter_markers("settings")))
    site.lead(**{name: table for mark in marks for name, table in mark.kwargs.items()})
    yield site
    found = site.holds()
    wrong = unplanned(found, site.operations()) if overlaps(found) else []
    assert wrong == [], f"two jobs held memory on one GPU at the same instant: {wrong[:4]}"


def restore(mini: MiniCluster) -> None:
    """Bring a cluster back to an empty queue and idle nodes."""
    deadline = time.monotonic() + _IDLE_SECONDS
    while time.monotonic() < deadline:
        # Twice where needed: a job that was being requeued when it was cancelled may come back.
        left = mini.exec(
            "ctl", "squeue -h -o %A | sort -u | xargs -r scancel --quiet; squeue -h", check=False
        )
        if not left.stdout.strip() and left.exit_code == 0:
            break
        time.sleep(0.1)
    nodes = ",".join(mini.spec.node_names)
    try:
        mini.wait_nodes_idle(5)
    except MiniClusterError:
        mini.exec("ctl", ["scontrol", "update", f"nodename={nodes}", "state=resume"], check=False)
        mini.wait_nodes_idle(_IDLE_SECONDS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failure with the item, for the fixture that gathers the logs."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report
