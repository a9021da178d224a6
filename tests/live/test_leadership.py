# SPDX-License-Identifier: GPL-2.0-or-later
"""Controllers in twos: one leads, the other waits and takes over; never do both act."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator

import pytest

from container import render
from tests.live.gpu_history import overlaps
from tests.live.support import QUICK, Site

pytestmark = pytest.mark.live

SETTINGS = "/etc/gandiva/gandiva.toml"
LOG = "/var/log/gandiva/second.log"
TAKEOVER_SECONDS = 45.0
"""A second on one host and 12 s on two (docs/high-availability.md), and a margin for a busy machine."""


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


def test_the_second_waits_and_takes_over_in_time(site: Site, second: Second) -> None:
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:4", "-w", "n1", steps=300) for _ in range(2)]
    jobs += [site.train("bob", "--gandiva", "--gres=gpu:1", "-w", "n1", steps=300) for _ in range(3)]
    site.wait_on_gpu(*jobs[:1])
    second.start()
    site.wait("the second to stand by", lambda: "standby: the controller with pid" in second.log())
    assert second.log().count("standby") == 1
    assert leader(site) != str(second.pid)
    assert second.running() and site.cluster.controller_running()
    # In the middle of a switch, as far as one can aim: slices are three seconds long.
    time.sleep(random.Random(4).uniform(2.0, 5.0))
    site.cluster.kill_controller(9)
    killed = time.monotonic()
    site.wait("the second to lead", lambda: "leads: policy" in second.log(), TAKEOVER_SECONDS)
    site.wait("the second to answer", lambda: healthy(site), TAKEOVER_SECONDS)
    print(f"took over after {time.monotonic() - killed:.1f} s")
    assert leader(site) == str(second.pid)
    assert set(site.wait_ended(jobs, 240).values()) == {"COMPLETED"}
    assert overlaps(site.holds()) == []


def test_they_take_turns_in_leading_through_many_kills(site: Site, second: Second) -> None:
    rng = random.Random(20261121)
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:4", "-w", "n1", steps=250) for _ in range(2)]
    jobs += [site.train("bob", "--gandiva", "--gres=gpu:4", "-w", "n2", steps=250) for _ in range(2)]
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
    assert set(site.wait_ended(jobs, 240).values()) == {"COMPLETED"}
    assert overlaps(site.holds()) == []


def test_an_orderly_end_of_the_leader_is_a_takeover_too_and_a_standby_ends_quietly(
    site: Site, second: Second
) -> None:
    second.start()
    site.wait("the second to stand by", lambda: "standby" in second.log())
    second.kill(signal.SIGTERM)
    site.wait("the standby to end", lambda: not second.running(), 30)
    assert "stopped without having led" in second.log()
    assert "Traceback" not in second.log()
    second.start()
    site.wait("the second to stand by", lambda: second.log().count("standby:") == 2)
    site.cluster.stop_controller()
    site.wait("the second to answer", lambda: healthy(site), TAKEOVER_SECONDS)


def test_a_leader_that_hangs_still_leads(site: Site, second: Second) -> None:
    """On one host the kernel knows: it may go on at any moment, in the middle of what it was doing."""
    second.start()
    site.wait("the second to stand by", lambda: "standby" in second.log())
    site.cluster.kill_controller(signal.SIGSTOP)
    try:
        time.sleep(3)
        assert "leads: policy" not in second.log()
    finally:
        site.cluster.kill_controller(signal.SIGCONT)
    site.wait("the first to go on", lambda: healthy(site))


def test_where_no_standby_is_wanted_the_second_is_refused(site: Site) -> None:
    text = render.controller_toml(site.cluster.spec, {**QUICK, "daemon": {"standby": False}})
    site.cluster.write_file("ctl", "/etc/gandiva/alone.toml", text)
    done = site.cluster.exec(
        "ctl",
        ["gandiva", "daemon", "-D", "--config", "/etc/gandiva/alone.toml"],
        user="gandiva",
        check=False,
    )
    assert done.exit_code == 1
    assert "another controller" in done.stderr + done.stdout
    assert site.cluster.controller_running()


def healthy(site: Site, port: int = 6822) -> bool:
    """A controller answers there, and leads or stands by."""
    probe = (
        f"import urllib.request as u; print(u.urlopen('http://localhost:{port}/healthz', timeout=5).status)"
    )
    done = site.cluster.exec("ctl", ["python3", "-c", probe], check=False)
    return done.stdout.strip() == "200"


# -- different journals ------------------------------------------------------------------------------------

OTHER = "/var/lib/gandiva/other.sqlite"
OTHER_PORT = 6823


@pytest.fixture
def stranger(site: Site) -> Iterator[Second]:
    """A controller with a journal of its own, as on another host: no lock keeps it out."""
    changes = {**QUICK, "journal": {"path": OTHER}, "api": {"listen": f"0.0.0.0:{OTHER_PORT}"}}
    text = render.controller_toml(site.cluster.spec, changes)
    site.cluster.write_file("ctl", "/etc/gandiva/other.toml", text)
    site.cluster.exec("ctl", f"rm -f {LOG} {OTHER}*")
    stranger = Second(site, "/etc/gandiva/other.toml")
    yield stranger
    stranger.kill()
    site.cluster.exec("ctl", f"rm -f {OTHER}* /etc/gandiva/other.toml")


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


def test_with_different_journals_only_one_acts_and_the_other_takes_over(site: Site, stranger: Second) -> None:
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:4", "-w", "n1", steps=500) for _ in range(2)]
    site.wait_on_gpu(*jobs)
    stranger.start()
    site.wait("the second to stand by", lambda: "standby: controller ctl:" in stranger.log())
    time.sleep(8)
    assert not leads(stranger)
    assert decisions(site, OTHER) == 0
    assert healthy(site) and healthy(site, OTHER_PORT)
    site.cluster.kill_controller(9)
    killed = time.monotonic()
    site.wait("the second to lead", lambda: leads(stranger), TAKEOVER_SECONDS)
    print(f"took over after {time.monotonic() - killed:.1f} s")
    # The first comes back, and now it is the one that waits.
    site.start_controller()
    site.wait("the first to stand by", lambda: "other.sqlite leads on node" in site.log())
    assert set(site.wait_ended(jobs, 240).values()) == {"COMPLETED"}
    assert decisions(site, OTHER) > 0
    assert overlaps(site.holds()) == []


def test_a_leader_that_wakes_up_too_late_stands_back(site: Site, stranger: Second) -> None:
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:4", "-w", "n1", steps=400) for _ in range(2)]
    site.wait_on_gpu(*jobs)
    stranger.start()
    site.wait("the second to stand by", lambda: "standby: controller ctl:" in stranger.log())
    site.cluster.kill_controller(signal.SIGSTOP)
    try:
        site.wait("the second to lead", lambda: leads(stranger), TAKEOVER_SECONDS)
        site.wait("the second to have its nodes", lambda: decisions(site, OTHER) > 0, 60)
    finally:
        site.cluster.kill_controller(signal.SIGCONT)
    site.wait("the first to stand back", lambda: "does not lead any more" in site.log(), 30)
    before = decisions(site, "/var/lib/gandiva/journal.sqlite")
    time.sleep(8)
    assert decisions(site, "/var/lib/gandiva/journal.sqlite") == before
    assert "does not lead any more" not in stranger.log()
    assert set(site.wait_ended(jobs, 240).values()) == {"COMPLETED"}
    assert overlaps(site.holds()) == []


def test_two_strangers_started_at_once_agree_on_one(site: Site, stranger: Second) -> None:
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:4", "-w", "n1", steps=150) for _ in range(2)]
    jobs += [site.train("bob", "--gandiva", "--gres=gpu:4", "-w", "n2", steps=150) for _ in range(2)]
    site.cluster.stop_controller()
    time.sleep(11)  # until no lease is left
    stranger.start()
    site.cluster.service("ctl", "gandiva").start()
    assert set(site.wait_ended(jobs, 300).values()) == {"COMPLETED"}
    assert overlaps(site.holds()) == []
    waits = [OTHER in site.log(), "standby" in stranger.log()]
    assert any(waits), (site.log_tail(), stranger.log())
