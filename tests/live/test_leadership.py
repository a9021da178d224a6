# SPDX-License-Identifier: GPL-2.0-or-later
"""Controllers in twos: one leads, the other waits and takes over; never do both act.

The lock, the lease and the fence are tested step by step in `tests/unit/leadership`, and the faults kill a
leader with a standby beside it in the middle of a switch. Here: two real daemons, their signals, and the
leases that real node agents keep for one that does not hear of its end."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator, Sequence

import pytest

from container import render
from tests.live.gpu_history import overlaps
from tests.live.hurry import hurried
from tests.live.slices import POLICY
from tests.live.support import QUICK, Site

pytestmark = [pytest.mark.live, pytest.mark.breaks, pytest.mark.settings(policy=POLICY)]

SETTINGS = "/etc/gandiva/gandiva.toml"
LOG = "/var/log/gandiva/second.log"
TAKEOVER_SECONDS = 90.0
"""A second on one host and 12 s on two (docs/high-availability.md); this late only where nothing comes any
more."""
MANY = 3000
"""Steps, more than any test waits for: they end `hurried`."""


class Second:
    """A controller beside the one that the mini cluster's service script knows."""

    def __init__(self, site: Site, config: str = SETTINGS) -> None:
        self._site = site
        self._config = config
        self.pid = 0

    def start(self) -> None:
        script = (
            f"setsid setpriv --reuid=gandiva --regid=gandiva --init-groups env HOME=/var/lib/gandiva "
            f"/usr/bin/gandiva daemon -D --config {self._config} >> {LOG} 2>&1 < /dev/null & echo $!"
        )
        self.pid = int(self._site.cluster.exec("ctl", ["bash", "-c", script]).stdout)

    def running(self) -> bool:
        script = f"grep -q gandiva /proc/{self.pid}/cmdline && ! grep -q '^State:.Z' /proc/{self.pid}/status"
        return self._site.cluster.exec("ctl", ["bash", "-c", script], check=False).exit_code == 0

    def kill(self, number: int = signal.SIGKILL) -> None:
        self._site.cluster.exec("ctl", ["kill", "-s", str(int(number)), str(self.pid)], check=False)

    def log(self) -> str:
        return self._site.cluster.exec("ctl", ["cat", LOG], check=False).stdout


@pytest.fixture
def second(site: Site) -> Iterator[Second]:
    site.cluster.exec("ctl", ["rm", "-f", LOG])
    second = Second(site)
    yield second
    second.kill()


def leader(site: Site) -> str:
    """The pid in the lock file."""
    return site.cluster.exec("ctl", ["cat", "/var/lib/gandiva/journal.sqlite.lock"]).stdout.strip()


def test_a_second_controller_on_the_host_stands_by(site: Site, second: Second) -> None:
    """The lock lives as long as the process: also while it is stopped in the middle of something."""
    alone = render.controller_toml(site.cluster.spec, {**QUICK, "daemon": {"standby": False}})
    site.cluster.write_file("ctl", "/etc/gandiva/alone.toml", alone)
    command = ["gandiva", "daemon", "-D", "--config", "/etc/gandiva/alone.toml"]
    refused = site.cluster.exec("ctl", command, user="gandiva", check=False)
    assert refused.exit_code == 1, "no standby is wanted"
    assert "another controller" in refused.stderr + refused.stdout

    second.start()
    site.wait("the second to stand by", lambda: "standby: the controller with pid" in second.log())
    assert leader(site) != str(second.pid)
    assert second.running() and site.cluster.controller_running()
    second.kill(signal.SIGTERM)
    site.wait("the standby to end", lambda: not second.running())
    assert "stopped without having led" in second.log()
    assert "Traceback" not in second.log()

    second.start()
    site.wait("the second to stand by", lambda: second.log().count("standby:") == 2)
    site.cluster.kill_controller(signal.SIGSTOP)
    try:
        time.sleep(3)  # it asks for the lock every second
        assert "leads: policy" not in second.log()
    finally:
        site.cluster.kill_controller(signal.SIGCONT)
    site.wait("the first to go on", lambda: healthy(site))
    site.cluster.stop_controller()
    site.wait("the second to lead", lambda: "leads: policy" in second.log(), TAKEOVER_SECONDS)
    site.wait("the second to answer", lambda: healthy(site), TAKEOVER_SECONDS)
    assert leader(site) == str(second.pid)


@pytest.mark.nightly
def test_the_second_waits_and_takes_over_in_time(site: Site, second: Second) -> None:
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:4", "-w", "n1", steps=MANY) for _ in range(2)]
    jobs += [site.train("bob", "--gandiva", "--gres=gpu:1", "-w", "n1", steps=MANY) for _ in range(3)]
    site.wait_on_gpu(*jobs[:1])
    second.start()
    site.wait("the second to stand by", lambda: "standby: the controller with pid" in second.log())
    assert second.log().count("standby") == 1
    # In the middle of a switch, as far as one can aim: slices are a second long.
    time.sleep(random.Random(4).uniform(2.0, 5.0))
    site.cluster.kill_controller(9)
    killed = time.monotonic()
    site.wait("the second to lead", lambda: "leads: policy" in second.log(), TAKEOVER_SECONDS)
    site.wait("the second to answer", lambda: healthy(site), TAKEOVER_SECONDS)
    print(f"took over after {time.monotonic() - killed:.1f} s")
    assert leader(site) == str(second.pid)
    end_well(site, jobs)


@pytest.mark.nightly
def test_they_take_turns_in_leading_through_many_kills(site: Site, second: Second) -> None:
    rng = random.Random(20261121)
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:4", "-w", "n1", steps=MANY) for _ in range(2)]
    jobs += [site.train("bob", "--gandiva", "--gres=gpu:4", "-w", "n2", steps=MANY) for _ in range(2)]
    site.wait_on_gpu(*jobs[:1])
    second.start()
    for turn in range(8):
        time.sleep(rng.uniform(0.5, 3.0))
        if turn % 2 == 0:
            site.cluster.kill_controller(9)
            site.wait("the second to lead", lambda: leader(site) == str(second.pid), TAKEOVER_SECONDS)
            site.cluster.service("ctl", "gandiva").start()
        else:
            second.kill()
            site.wait("the first to lead", lambda: leader(site) != str(second.pid), TAKEOVER_SECONDS)
            second.start()
    end_well(site, jobs)


def end_well(site: Site, jobs: Sequence[int]) -> None:
    """All of them, and never were two on one GPU."""
    with hurried(site):
        assert set(site.wait_ended(jobs, 240).values()) == {"COMPLETED"}
    assert overlaps(site.holds()) == []


def healthy(site: Site, port: int = 6822) -> bool:
    """A controller answers there, and leads or stands by."""
    probe = (
        f"import urllib.request as u; print(u.urlopen('http://localhost:{port}/healthz', timeout=5).status)"
    )
    done = site.cluster.exec("ctl", ["python3", "-c", probe], check=False)
    return done.stdout.strip() == "200"


# -- different journals ------------------------------------------------------------------------------------

JOURNAL = "/var/lib/gandiva/journal.sqlite"
OTHER = "/var/lib/gandiva/other.sqlite"
OTHER_PORT = 6823


@pytest.fixture
def stranger(site: Site) -> Iterator[Second]:
    """A controller with a journal of its own, as on another host: no lock keeps it out."""
    changes = {
        **QUICK,
        "policy": POLICY,
        "journal": {"path": OTHER},
        "api": {"listen": f"0.0.0.0:{OTHER_PORT}"},
    }
    text = render.controller_toml(site.cluster.spec, changes)
    site.cluster.write_file("ctl", "/etc/gandiva/other.toml", text)
    site.cluster.exec("ctl", f"rm -f {LOG} {OTHER}*")
    stranger = Second(site, "/etc/gandiva/other.toml")
    yield stranger
    stranger.kill()
    site.cluster.exec("ctl", f"rm -f {OTHER}* /etc/gandiva/other.toml")
    for node in site.nodes:  # its lease, else the controller of the next test waits for the end of it
        site.cluster.exec(node, ["rm", "-f", "/run/gandiva/leader.json"])


def leads(second: Second) -> bool:
    """What it said last is that it leads."""
    log = second.log()
    return log.rfind("leads: policy") > max(log.rfind("standby:"), log.rfind("does not lead any more"))


def decisions(site: Site, journal: str) -> int:
    """How many decisions are in a journal."""
    count = (
        f"import sqlite3; print(sqlite3.connect('{journal}')"
        ".execute('select count(*) from decisions').fetchone()[0])"
    )
    return int(site.cluster.exec("ctl", ["python3", "-c", count], user="gandiva").stdout)


def test_the_nodes_obey_one_controller_and_one_that_wakes_up_too_late_stands_back(
    site: Site, stranger: Second
) -> None:
    """Its agents keep the lease while it is stopped, and no longer than it lasts."""
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:4", "-w", "n1", steps=MANY) for _ in range(2)]
    site.wait_on_gpu(*jobs)
    stranger.start()
    site.wait("the second to stand by", lambda: "standby: controller ctl:" in stranger.log())
    more_decisions(site, JOURNAL)
    assert not leads(stranger)
    assert decisions(site, OTHER) == 0
    assert healthy(site) and healthy(site, OTHER_PORT)

    site.cluster.kill_controller(signal.SIGSTOP)
    try:
        site.wait("the second to lead", lambda: leads(stranger), TAKEOVER_SECONDS)
        site.wait("the second to have its nodes", lambda: decisions(site, OTHER) > 0)
    finally:
        site.cluster.kill_controller(signal.SIGCONT)
    site.wait("the first to stand back", lambda: "does not lead any more" in site.log())
    site.wait("the first to stand by", lambda: "other.sqlite leads on node" in site.log())
    before = decisions(site, JOURNAL)
    more_decisions(site, OTHER)
    assert decisions(site, JOURNAL) == before
    assert "does not lead any more" not in stranger.log()
    end_well(site, jobs)


def more_decisions(site: Site, journal: str) -> None:
    """Wait until its controller has let the jobs take turns: suspended one and resumed the other."""
    before = decisions(site, journal)
    site.wait(f"decisions in {journal}", lambda: decisions(site, journal) >= before + 2)


@pytest.mark.nightly
def test_with_different_journals_only_one_acts_and_the_other_takes_over(site: Site, stranger: Second) -> None:
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:4", "-w", "n1", steps=MANY) for _ in range(2)]
    site.wait_on_gpu(*jobs)
    stranger.start()
    site.wait("the second to stand by", lambda: "standby: controller ctl:" in stranger.log())
    more_decisions(site, JOURNAL)
    assert not leads(stranger)
    assert decisions(site, OTHER) == 0
    site.cluster.kill_controller(9)
    killed = time.monotonic()
    site.wait("the second to lead", lambda: leads(stranger), TAKEOVER_SECONDS)
    print(f"took over after {time.monotonic() - killed:.1f} s")
    # The first comes back, and now it is the one that waits.
    site.start_controller(policy=POLICY)
    site.wait("the first to stand by", lambda: "other.sqlite leads on node" in site.log())
    end_well(site, jobs)
    assert decisions(site, OTHER) > 0


@pytest.mark.nightly
def test_two_strangers_started_at_once_agree_on_one(site: Site, stranger: Second) -> None:
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:4", "-w", "n1", steps=MANY) for _ in range(2)]
    jobs += [site.train("bob", "--gandiva", "--gres=gpu:4", "-w", "n2", steps=MANY) for _ in range(2)]
    site.cluster.stop_controller()
    time.sleep(11)  # until no lease is left
    stranger.start()
    site.cluster.service("ctl", "gandiva").start()
    site.wait_on_gpu(*jobs, timeout_seconds=120)
    end_well(site, jobs)
    waits = [OTHER in site.log(), "standby" in stranger.log()]
    assert any(waits), (site.log_tail(), stranger.log())
