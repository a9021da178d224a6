# SPDX-License-Identifier: GPL-2.0-or-later
"""What operators see: `gandiva check`, /metrics, /healthz, owner files, debug flags."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from container.cluster import MiniCluster
from tests.live.support import QUICK, SLICE_SECONDS, Site

pytestmark = pytest.mark.live

Break = Callable[[MiniCluster], Iterator[None]]
Found = tuple[str, str, str, str]
"""Where, of what, what is found, what to change: words of a finding."""
FRAGMENT = "/etc/slurm/gandiva/slurm.conf"
API = "http://ctl:6822"
PATIENT = ("--deadline", "60")
"""Where nothing is broken: on a busy machine a healthy part may be slow."""


# -- gandiva check --------------------------------------------------------------------------------------


def check(
    cluster: MiniCluster, *options: str, user: str = "root", host: str = "ctl"
) -> tuple[int, list[dict[str, str]]]:
    """`gandiva check --json`: its exit status and the findings."""
    command = ["gandiva", "check", "--json", *options]
    done = cluster.exec(host, command, user=user, check=False, timeout_seconds=240)
    assert not done.stderr, done.stderr
    answer = json.loads(done.stdout)
    assert answer["status"] == done.exit_code
    return done.exit_code, list(answer["findings"])


def bad(findings: list[dict[str, str]]) -> list[dict[str, str]]:
    return [finding for finding in findings if finding["level"] != "ok"]


def kinds(findings: list[dict[str, str]]) -> set[tuple[str, str]]:
    """Where and of what there is something to change."""
    return {(finding["where"], finding["check"]) for finding in bad(findings)}


def test_a_healthy_cluster_has_nothing_to_change_and_is_not_changed(site: Site) -> None:
    """Of a real Slurm, whoever asks; an ordinary user hears what could not be looked at."""
    snapshot = "find /etc/slurm /etc/gandiva -type f -printf '%p %T@ %m %s\\n' | sort"
    before = site.cluster.exec("ctl", snapshot).stdout
    status, findings = check(site.cluster, *PATIENT)
    assert (status, bad(findings)) == (0, []), bad(findings)
    assert len(findings) >= 40
    assert {finding["where"] for finding in findings} >= {"slurm", "n1", "n2", "ctl", API}
    as_gandiva = check(site.cluster, *PATIENT, user="gandiva")
    assert as_gandiva[0] == 0 and len(as_gandiva[1]) == len(findings), bad(as_gandiva[1])
    status, of_alice = check(site.cluster, *PATIENT, user="alice")
    assert status == 1, bad(of_alice)
    assert {finding["level"] for finding in bad(of_alice)} == {"warning"}
    assert any("you may not read /etc/gandiva/agent_key" in finding["found"] for finding in of_alice)
    status, on_login = check(site.cluster, *PATIENT, user="alice", host="login")
    assert (status, bad(on_login)) == (0, []), bad(on_login)
    assert {"API", "GresTypes", "SPANK plugin", "GRES"} <= {finding["check"] for finding in on_login}
    assert site.cluster.exec("ctl", snapshot).stdout == before


@contextmanager
def broken(cluster: MiniCluster, breaks: Iterable[Break]) -> Iterator[None]:
    """Break something, and put it right again whatever happens in between."""
    with ExitStack() as stack:
        for each in breaks:
            steps = each(cluster)
            next(steps)
            stack.callback(next, steps, None)
        yield


def sshd_stopped(cluster: MiniCluster) -> Iterator[None]:
    cluster.service("n2", "sshd").stop()
    yield
    cluster.service("n2", "sshd").start()


def sshd_hangs(cluster: MiniCluster) -> Iterator[None]:
    cluster.service("n2", "sshd").kill(signal.SIGSTOP)
    yield
    cluster.service("n2", "sshd").kill(signal.SIGCONT)


def key_readable(cluster: MiniCluster) -> Iterator[None]:
    cluster.exec("ctl", ["chmod", "644", "/etc/gandiva/agent_key"])
    yield
    cluster.exec("ctl", ["chmod", "600", "/etc/gandiva/agent_key"])


def host_key_unknown(cluster: MiniCluster) -> Iterator[None]:
    yield from _edited(cluster, "ctl", "/etc/gandiva/known_hosts", lambda text: re.sub("n1 .*\n", "", text))


def no_authorized_key(cluster: MiniCluster) -> Iterator[None]:
    yield from _edited(cluster, "n1", "/root/.ssh/authorized_keys", lambda _: "# none\n", 0o600)


def key_from_anywhere(cluster: MiniCluster) -> Iterator[None]:
    path = "/root/.ssh/authorized_keys"
    yield from _edited(cluster, "n2", path, lambda text: text[text.index("restrict,") :], 0o600)


def plugstack_line_removed(cluster: MiniCluster) -> Iterator[None]:
    path = "/etc/slurm/plugstack.conf.d/gandiva.conf"
    yield from _edited(cluster, "ctl", path, lambda text: text.replace("required", "#required"))


def job_submit_without_us(cluster: MiniCluster) -> Iterator[None]:
    path = "/etc/slurm/job_submit.lua"
    yield from _edited(cluster, "ctl", path, lambda text: text.replace("gandiva.job_modify(", "other("))


def module_of_another_version(cluster: MiniCluster) -> Iterator[None]:
    path = "/etc/slurm/gandiva/gandiva.lua"
    yield from _edited(
        cluster, "ctl", path, lambda text: re.sub('M.version = ".*"', 'M.version = "0.0.1"', text)
    )


def no_operator(cluster: MiniCluster) -> Iterator[None]:
    cluster.exec("ctl", "sacctmgr -i modify user gandiva set adminlevel=none")
    yield
    cluster.exec("ctl", "sacctmgr -i modify user gandiva set adminlevel=operator")


def clock_ahead(cluster: MiniCluster) -> Iterator[None]:
    """The agent of n2 believes in a time that is five seconds later."""
    code = "import time\n_time = time.time\ntime.time = lambda: _time() + 5.0\n"
    cluster.write_file("n2", "/opt/skewed/sitecustomize.py", code)
    wrapped = "env PYTHONPATH=/opt/skewed /usr/bin/gandiva-agent"
    edited = _edited(
        cluster,
        "n2",
        "/root/.ssh/authorized_keys",
        lambda t: t.replace("/usr/bin/gandiva-agent", wrapped),
        0o600,
    )
    yield from edited
    cluster.exec("n2", ["rm", "-r", "/opt/skewed"])


def plugin_of_another_slurm(cluster: MiniCluster) -> Iterator[None]:
    """n2's plugin says that it was built for Slurm 20.02."""
    find = "$(ls /usr/lib/*/slurm-wlm/spank_gandiva.so)"
    patch = (
        "import re,subprocess,sys,pathlib; p=pathlib.Path(sys.argv[1]); d=p.read_bytes();"
        "from controller.nodes.installed import built_for; a,b,c=map(int,built_for(p).split('.'));"
        "n=(a<<16|b<<8|c).to_bytes(4,'little'); assert n in d;"
        "p.write_bytes(d.replace(n,(0x140200).to_bytes(4,'little')))"
    )
    cluster.exec("n2", f"cp -p {find} /root/plugin.so")
    python = "cd /opt/gandiva/src && /opt/gandiva/venv/bin/python"
    cluster.exec("n2", f'{python} -c "{patch}" {find}')
    yield
    cluster.exec("n2", f"mv /root/plugin.so {find}")


def other_numbers_of_gpus_in_slurm(cluster: MiniCluster) -> Iterator[None]:
    """Of the four GPUs in gres.conf slurm.conf names three on n1 and five on n2, which Slurm puts aside.
    (With shards for the fifth one slurmd would not even start.)"""

    def three_and_five(text: str) -> str:
        (line,) = re.findall(r"NodeName=.*\n", text)
        three = line.replace("gpu:a100_3:1,", "").replace(",shard:a100_3:16", "")
        five = line.replace("gpu:a100_3:1,", "gpu:a100_3:1,gpu:a100_4:1,")
        return text.replace(line, three.replace("n[1-2]", "n1") + five.replace("n[1-2]", "n2"))

    for _ in _edited(cluster, "ctl", FRAGMENT, three_and_five):
        _restart_slurm(cluster)
        yield
    _restart_slurm(cluster)
    cluster.exec("ctl", "scontrol update nodename=n2 state=resume", check=False)


def wrong_option(cluster: MiniCluster) -> Iterator[None]:
    """The site's own slurm.conf, further down, undoes a line of the fragment."""
    for _ in _edited(
        cluster, "ctl", "/etc/slurm/slurm.conf", lambda t: t + "PreemptParameters=suspend_grace_time=20\n"
    ):
        cluster.exec("ctl", ["scontrol", "reconfigure"])
        _wait_registered(cluster)
        yield
    cluster.exec("ctl", ["scontrol", "reconfigure"])


def settings_broken(cluster: MiniCluster) -> Iterator[None]:
    path = "/etc/gandiva/gandiva.toml"
    yield from _edited(cluster, "ctl", path, lambda text: text + "\n[lop]\ninterval_seconds = 0.5\n")


def slurmctld_stopped(cluster: MiniCluster) -> Iterator[None]:
    cluster.service("ctl", "slurmctld").stop()
    yield
    cluster.service("ctl", "slurmctld").start()


def _edited(
    cluster: MiniCluster, host: str, path: str, change: Callable[[str], str], mode: int = 0o644
) -> Iterator[None]:
    text = cluster.read_file(host, path)
    changed = change(text)
    assert changed != text, path
    cluster.write_file(host, path, changed, mode)
    try:
        yield
    finally:
        cluster.write_file(host, path, text, mode)


def _restart_slurm(cluster: MiniCluster) -> None:
    """All of it at once: a node whose daemon still has the other number is put aside."""
    slurmds = [cluster.service(node, "slurmd") for node in cluster.spec.node_names]
    for slurmd in slurmds:
        slurmd.stop()
    cluster.service("ctl", "slurmctld").restart()
    for slurmd in slurmds:
        slurmd.start()
    _wait_registered(cluster)


def _wait_registered(cluster: MiniCluster) -> None:
    """slurmctld that begins, after `scontrol reconfigure` too, knows state and version of no node before its
    slurmd has registered."""
    look = "scontrol -o show nodes | grep -c Version=; true"
    deadline = time.monotonic() + 60
    while int(cluster.exec("ctl", look).stdout) < len(cluster.spec.node_names):
        assert time.monotonic() < deadline
        time.sleep(0.25)


FILES = {
    key_readable: ("/etc/gandiva/agent_key", "SSH key", "others may use it", "chmod 600"),
    host_key_unknown: ("n1", "agent", "not found in known_hosts", "ssh-keyscan -t ed25519 n1 >>"),
    key_from_anywhere: ("n2", "SSH key", "from any address", 'before restrict: from="'),
    plugstack_line_removed: ("ctl", "plugstack", "loads no spank_gandiva.so", "required spank_gandiva.so"),
    job_submit_without_us: ("ctl", "job_submit", "does not call the module", "gandiva.job_modify(job_desc"),
    module_of_another_version: ("ctl", "Lua module", "of version 0.0.1", "make -C slurm_plugin install"),
    no_operator: ("slurm", "AdminLevel", "AdminLevel=None", "modify user gandiva set adminlevel=operator"),
    clock_ahead: ("n2", "clock", "ahead of this host's", "chronyd"),
    plugin_of_another_slurm: ("n2", "SPANK plugin", "for Slurm 20.02.0", "on n2: make -C slurm_plugin"),
    wrong_option: ("slurm", "suspend_grace_time", "waits 20 s", "PreemptParameters=suspend_grace_time=2"),
}
NO_WAY_IN = {
    no_authorized_key: ("n1", "agent", "root is not let in", 'restrict,command="/usr/bin/gandiva-agent"'),
    sshd_hangs: ("n2", "agent", "cannot be reached", "is n2 up"),
}
GPUS = {
    other_numbers_of_gpus_in_slurm: (
        "n1",
        "GPUs",
        "0, 1, 2, 3 (nvidia_a100-sxm4-80gb), Slurm has 0, 1, 2",
        "shard:a100_3:16, gres.conf",
    ),
    sshd_stopped: ("n2", "agent", "cannot be reached", "systemctl start sshd on n2"),
}
PUT_ASIDE = ("n2", "state", "gres/gpu count", "gres.conf agree")
NO_ANSWERS = {
    settings_broken: (
        "ctl",
        "settings",
        "lop: no such table; did you mean loop?",
        "edit /etc/gandiva/gandiva",
    ),
    slurmctld_stopped: ("slurm", "slurmctld", "configuration", "scontrol ping"),
}
"""What each breaks is found there, so, with this remedy."""


@pytest.mark.breaks
@pytest.mark.parametrize(
    ("breaks", "more", "api"),
    [
        (FILES, (), API),
        (NO_WAY_IN, (), API),
        (GPUS, (PUT_ASIDE,), API),
        pytest.param(NO_ANSWERS, (), "http://localhost:6822", marks=pytest.mark.nightly),
    ],
    ids=["files", "no_way_in", "gpus", "no_answers"],
)
def test_all_that_is_broken_is_found_at_its_place_with_the_remedy(
    cluster: MiniCluster, breaks: dict[Break, Found], more: tuple[Found, ...], api: str
) -> None:
    """And nothing else is. `tests/unit/checks` has the judgements one by one; here they are of what a real
    Slurm, sshd and plugin say when they are broken so."""
    cluster.stop_controller()
    with broken(cluster, breaks):
        status, findings = check(cluster)
    expected = (*breaks.values(), *more)
    # (That the controller does not run is a warning.)
    assert kinds(findings) == {(api, "API"), *((where, what) for where, what, *_ in expected)}, bad(findings)
    for where, what, found, change in expected:
        (there,) = [each for each in bad(findings) if (each["where"], each["check"]) == (where, what)]
        assert found in there["found"] and change in there["change"], there
    assert status == (2 if "error" in {each["level"] for each in findings} else 1)
    cluster.wait_nodes_idle()
    status, findings = check(cluster, *PATIENT)
    assert (status, kinds(findings)) == (1, {(API, "API")}), f"after the repair: {bad(findings)}"


# -- metrics and health ---------------------------------------------------------------------------------


def fetch(site: Site, path: str) -> tuple[int, str]:
    """Ask the API from the login node."""
    code = (
        "import sys,urllib.request as u,urllib.error as e\n"
        f"try: r=u.urlopen('http://ctl:6822{path}',timeout=10)\n"
        "except e.HTTPError as x: r=x\n"
        "print(r.status if hasattr(r,'status') else r.code); sys.stdout.write(r.read().decode())"
    )
    done = site.cluster.exec("login", ["/opt/gandiva/venv/bin/python", "-c", code], user="alice")
    status, _, body = done.stdout.partition("\n")
    return int(status), body


def metrics(site: Site) -> dict[str, float]:
    """Every sample, by `name{labels}`."""
    status, text = fetch(site, "/metrics")
    assert status == 200
    return {
        f"{s.name}{sorted(s.labels.items())}" if s.labels else s.name: s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


LEAVING = ("offload", "checkpoint")
"""What an agent is asked to take a job off its GPUs, the second where the first is not to be had."""


@pytest.mark.nightly
def test_metrics_count_what_the_jobs_went_through(site: Site) -> None:
    site.cluster.stop_controller()
    site.lead()  # one that has counted nothing yet
    site.leave_one_gpu()
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:1", steps=200) for _ in range(3)]
    site.wait_on_gpu(*jobs)
    during, states = metrics(site), site.states(jobs).values()
    assert during["gandiva_gpus[('use', 'ordinary')]"] == 7
    # (The first may be over by now, where it could not be suspended.)
    left = sum(state in ("RUNNING", "SUSPENDED") for state in states)
    assert left <= sum(v for k, v in during.items() if k.startswith("gandiva_jobs[")) <= 3
    assert set(site.wait_ended(jobs, 120).values()) == {"COMPLETED"}
    site.wait("the ends to be seen", lambda: metrics(site)["gandiva_jobs[('phase', 'running')]"] == 0)
    site.wait("the end of what is done with them", lambda: all(each.outcome for each in site.operations()))
    after = metrics(site)
    rows = [row for row in site.report() if row["job_id"] in jobs]
    reported = sum(row["suspends"] for row in rows)
    journal = [each for each in site.operations() if each.job_id in jobs]
    outcomes = {
        kind: [each.outcome for each in journal if each.kind == kind] for kind in ("suspend", "resume")
    }
    begun, done = len(outcomes["suspend"]), outcomes["suspend"].count("done")
    assert begun >= 3 and done >= 2
    assert after["gandiva_operations_total[('kind', 'suspend'), ('outcome', 'done')]"] == done
    assert after["gandiva_operations_total[('kind', 'place'), ('outcome', 'done')]"] == 3
    assert after["gandiva_queue_wait_seconds_count"] == 3
    assert after["gandiva_step_duration_seconds_count[('step', 'offload')]"] >= done
    # Three jobs took turns on one GPU: it went from hand to hand, and each time lay idle for a moment.
    gaps, total = after["gandiva_switch_gap_seconds_count"], after["gandiva_switch_gap_seconds_sum"]
    # (Not every suspend: the next one may have been asked for a moment later.)
    assert done / 2 <= gaps and 0 < total / gaps < 30
    # One that failed, or whose job ended meanwhile, may have got as far as these calls. Where all were done
    # the numbers are equal.
    assert done - (begun - done) <= reported <= done
    undone = len(outcomes["resume"]) - outcomes["resume"].count("done")  # such a job is suspended again
    calls = {k: v for k, v in after.items() if k.startswith("gandiva_slurm_calls_total[('call', 'suspend')")}
    suspended = calls["gandiva_slurm_calls_total[('call', 'suspend'), ('outcome', 'ok')]"]
    in_vain = sum(calls.values()) - suspended  # or done, and its answer was lost
    assert done - in_vain <= suspended <= begun + undone, (calls, journal)
    verbs = [f"gandiva_agent_calls_total[('outcome', 'ok'), ('verb', '{verb}')]" for verb in LEAVING]
    assert done <= sum(after.get(verb, 0) for verb in verbs) <= begun, journal
    assert after["gandiva_slurm_calls_total[('call', 'load'), ('outcome', 'ok')]"] > 10
    assert after["gandiva_ticks_total"] > during["gandiva_ticks_total"]
    assert after["gandiva_journal_size_bytes[('file', 'main')]"] > 0
    assert after["process_resident_memory_bytes"] > 20e6
    assert fetch(site, "/healthz") == (200, "ok\n")


@pytest.mark.nightly
@pytest.mark.breaks
@pytest.mark.settings(cluster={"rpc_deadline_seconds": 5.0})
def test_a_silent_slurmctld_and_a_lost_node_are_counted(site: Site) -> None:
    slurmctld = site.cluster.service("ctl", "slurmctld")
    sshd = site.cluster.service("n2", "sshd")
    slurmctld.kill(signal.SIGSTOP)
    try:
        cut = "gandiva_slurm_calls_total[('call', 'load'), ('outcome', 'cut_off')]"
        site.wait("calls that are cut off", lambda: metrics(site)[cut] >= 1, 90)
        # Calls are counted at once, problems published with the turn.
        site.wait("the problem", lambda: metrics(site)["gandiva_problems"] == 1)
    finally:
        slurmctld.kill(signal.SIGCONT)
    site.wait("no problem any more", lambda: metrics(site)["gandiva_problems"] == 0, 120)
    sshd.stop()
    site.cluster.exec("n2", "pkill -x sshd-session; pkill -f '[g]andiva-agent'; true")
    try:
        lost = "gandiva_agent_calls_total[('outcome', 'unreachable'), ('verb', 'observe')]"
        site.wait("the lost agent", lambda: metrics(site).get(lost, 0) >= 1, 90)
        site.wait("n2 down", lambda: metrics(site)["gandiva_node_up[('node', 'n2')]"] == 0, 90)
    finally:
        sshd.start()


# -- owner files ----------------------------------------------------------------------------------------

LOOK = (
    "import json,subprocess,pathlib\n"
    "show=json.loads(subprocess.run(['mockgpu','show','--json'],capture_output=True,text=True,check=True).stdout)\n"
    "files={p.name:p.read_text() for p in pathlib.Path('/run/gpustat').iterdir() if p.name[0]!='.'}\n"
    "print(json.dumps({'show':show,'files':files}))\n"
)


def owners(site: Site, node: str) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """By UUID: the jobs that hold memory, and the jobs that the files name."""
    python = "/opt/gandiva/venv/bin/python"
    seen: dict[str, Any] = json.loads(site.cluster.exec(node, [python, "-c", LOOK]).stdout)
    uuids = {gpu["index"]: gpu["uuid"] for gpu in seen["show"]["gpus"]}
    held: dict[str, set[int]] = {}
    for process in seen["show"]["processes"]:
        for gpu in process["gpus"]:
            if gpu["used_bytes"] > 0 and process["job_id"]:
                held.setdefault(uuids[gpu["gpu"]], set()).add(process["job_id"])
    named = {
        name: {int(line.split()[0]) for line in text.splitlines()} for name, text in seen["files"].items()
    }
    return held, named


def doing(site: Site, since: float = 0.0) -> list[tuple[int, str, bool]]:
    """What the controller saw after `since` that jobs do: id, phase, in the middle of a switch."""
    seen: dict[str, Any] = {}

    def look() -> bool:
        seen.update(json.loads(fetch(site, "/v1/gpus")[1]))
        return bool(seen["time"] > since)

    site.wait("a later look of the controller", look)
    return sorted((job["job_id"], job["phase"], job["busy"]) for job in seen["jobs"])


LONG_SLICES = {"name": "gandiva", "gandiva": {"slice_seconds": 2 * SLICE_SECONDS, "max_jobs_per_gpu": 8}}
"""Long enough to look three times between two switches, on a busy machine too."""


@pytest.mark.breaks
@pytest.mark.settings(policy=LONG_SLICES)
def test_owner_files_name_the_jobs_that_hold_the_gpus(site: Site) -> None:
    """Through switches on real nodes and the death of the controller, beside a file that a site's own prolog
    wrote for a job that Gandiva has nothing to do with. /metrics has the same GPUs."""
    for count, node in ((4, "n2"), (2, "n1")):
        job = site.submit("carol", "sleep 600", "--no-gandiva", f"--gres=gpu:{count}", "-w", node)
        site.wait_state(job, "RUNNING")
    jobs = [site.train(user, "--gandiva", "--gres=gpu:1") for user in ("alice", "alice", "bob", "bob")]
    site.wait_on_gpu(*jobs, timeout_seconds=120)
    ours = set(owners(site, "n1")[0])
    foreign = next(uuid for uuid in _uuids(site, "n1") if uuid not in ours)
    site.cluster.write_file("n1", f"/run/gpustat/{foreign}", "4294000001 2001\n")
    theirs = {foreign: {4294000001}}
    looks, changes = 0, -1
    last: dict[str, set[int]] = {}
    deadline = time.monotonic() + 180
    while (changes < 2 or looks < 5) and time.monotonic() < deadline:
        before = doing(site)
        held, named = owners(site, "n1")
        after = doing(site, since=time.time())
        if any(busy for _, _, busy in before) or after != before or not held:
            continue  # a switch is going on
        assert named == {**held, **theirs}, f"files {named}, memory {held}, jobs {before}"
        looks += 1
        changes += held != last
        last = held
    assert changes >= 2 and looks >= 5, f"{looks} looks, with {changes} changes in between"
    seen = metrics(site)
    assert seen["gandiva_gpus[('use', 'ordinary')]"] == 6
    assert seen["gandiva_operations_total[('kind', 'suspend'), ('outcome', 'done')]"] >= 2
    assert fetch(site, "/healthz") == (200, "ok\n")
    # A killed controller, and with it its agents: who ends meanwhile is not in the files for ever.
    site.cluster.kill_controller(9)
    running = [job for job, state in site.states(jobs).items() if state == "RUNNING"]
    for job in running:
        site.cluster.exec("login", ["scancel", str(job)])
    site.wait_ended(running)
    site.start_controller(policy=LONG_SLICES)
    site.wait("files of the others only", lambda: not _named(site) & set(running))
    site.cancel_all()
    site.wait("the other's file only", lambda: _named(site) == {4294000001})
    site.cluster.exec("n1", ["rm", f"/run/gpustat/{foreign}"])


def _named(site: Site) -> set[int]:
    return {job for node in site.nodes for ids in owners(site, node)[1].values() for job in ids}


def _uuids(site: Site, node: str) -> Iterator[str]:
    show = json.loads(site.cluster.exec(node, ["mockgpu", "show", "--json"]).stdout)
    yield from (gpu["uuid"] for gpu in show["gpus"])


# -- the log --------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.breaks
def test_debug_flags_come_and_go_with_a_reload(site: Site) -> None:
    def said(subsystem: str) -> int:
        found = 0
        for line in site.cluster.controller_log().splitlines()[mark:]:
            if line.startswith("{"):
                entry = json.loads(line)
                found += entry["level"] == "debug" and entry["subsystem"].startswith(subsystem)
        return found

    def reload(**log: Any) -> None:
        from container import render

        text = render.controller_toml(site.cluster.spec, {**QUICK, "log": log})
        site.cluster.write_file("ctl", "/etc/gandiva/gandiva.toml", text)
        site.cluster.service("ctl", "gandiva").kill(signal.SIGHUP)

    mark = len(site.cluster.controller_log().splitlines())
    reload(format="json", debug=["cluster", "executor"])
    job = site.train("alice", "--gandiva", "--gres=gpu:1", steps=20)
    site.wait_ended([job])
    site.wait("calls and steps in the log", lambda: said("cluster") > 3 and said("executor") > 3)
    assert said("nodes") == said("api") == said("policy") == 0
    steps = [
        json.loads(line) for line in site.cluster.controller_log().splitlines()[mark:] if '"executor' in line
    ]
    assert {entry["job"] for entry in steps} == {job}
    before = site.log().count("settings reloaded")
    reload(format="json", debug=[])
    site.wait("the reload", lambda: site.log().count("settings reloaded") > before, 30)
    mark = len(site.cluster.controller_log().splitlines())
    ticks = metrics(site)["gandiva_ticks_total"]
    site.wait("some turns", lambda: metrics(site)["gandiva_ticks_total"] > ticks + 3)
    assert said("") == 0
