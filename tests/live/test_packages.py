# SPDX-License-Identifier: GPL-2.0-or-later
"""The Debian packages: what is in them, how they come and go, and a cluster that runs from nothing else.

    make deb-test                                             both releases of Debian, everything
    RELEASE=trixie pytest tests/live/test_packages.py -m live without the long ones (second build, upgrades)

These tests make a cluster and containers of their own; the run's common cluster is left alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from container import engine, images, packages
from container.cluster import MiniCluster, remove_leftovers
from container.containers import HOST_LABEL, LABEL, SPEC_LABEL
from container.execute import Completed, Content, execute, get_file, put_files
from container.spec import ClusterSpec
from tests.live.gpu_history import overlaps
from tests.live.support import Site

pytestmark = pytest.mark.live

RELEASE = os.environ.get("RELEASE") or "forky"
SLURM = {"forky": "26.05", "trixie": "24.11"}[RELEASE]
ADAPTER = {"forky": "pyslurm", "trixie": "command"}[RELEASE]
TRAIN = "python3 examples/train_mock.py --minibatch-ms 50 --memory-mb 1024"
EXPOSURE = 15
"""Tenths; what `systemd-analyze security` may say at most of the daemon (0 none, 100 all)."""
LONG = pytest.mark.skipif(not os.environ.get("ALL"), reason="long: set ALL=1 (make deb-test does)")
_PREFIX = "packages-"


@pytest.fixture(scope="module")
def client() -> Any:
    return engine.connect(report=print)


@pytest.fixture(scope="module")
def folder(client: Any) -> Path:
    """The packages of this release, built where they are out of date."""
    return packages.Packages(client, RELEASE, print).ensure()


@dataclass
class Machine:
    """A container without Slurm running, that packages come to and go from."""

    client: Any
    container: Any

    def __call__(self, script: str, *, check: bool = True, timeout_seconds: float = 120) -> Completed:
        return execute(
            self.client,
            self.container.id,
            ["bash", "-c", script],
            host="machine",
            check=check,
            timeout_seconds=timeout_seconds,
        )

    def files(self) -> set[str]:
        """Everything on its disk that a package could leave behind."""
        return set(self("find /boot /etc /home /opt /root /srv /usr /var -xdev").stdout.splitlines())

    def put(self, files: list[Path]) -> None:
        put_files(
            self.client, self.container.id, {f"/pk/{path.name}": Content(path.read_bytes()) for path in files}
        )


def new_machine(client: Any, image: str) -> Iterator[Machine]:
    container = client.containers.create(
        image, ["sleep", "infinity"], labels={images.LABEL: "packages"}, hostname="machine"
    )
    try:
        container.start()
        yield Machine(client, container)
    finally:
        container.remove(force=True)


@pytest.fixture
def machine(client: Any, folder: Path) -> Iterator[Machine]:
    """As a site's machine before Gandiva, with all packages at hand in /pk."""
    for machine in new_machine(client, images.Images(client, RELEASE, print).ensure_site()):
        machine.put(list(folder.glob("*.deb")))
        yield machine


@pytest.fixture
def workshop(client: Any, folder: Path) -> Iterator[Machine]:
    """Where packages are built: readelf, and shells whose completion is tried."""
    for machine in new_machine(client, images.Images(client, RELEASE, print).ensure_deb()):
        machine.put(list(folder.glob("*.deb")))
        yield machine


# -- in the packages ---------------------------------------------------------------------------


def test_lintian_finds_no_error(folder: Path) -> None:
    """The build fails on errors; warnings are few enough to be looked at one by one."""
    found = (folder / "lintian.txt").read_text()
    assert not re.search(r"^E:", found, re.MULTILINE), found
    assert not re.search(r"^W:", found, re.MULTILINE), found


def test_the_plugin_fits_one_slurm_only(machine: Machine) -> None:
    depends = machine("dpkg-deb -f /pk/gandiva-slurm-plugin_*.deb Depends").stdout
    year, month = SLURM.split(".")
    assert f"slurm-wlm-basic-plugins (>= {SLURM})" in depends
    assert f"slurm-wlm-basic-plugins (<< {year}.{int(month) + 1:02d}~)" in depends


def test_configuration_is_marked_as_such_and_nothing_is_where_it_must_not_be(machine: Machine) -> None:
    for path in machine("ls /pk/*.deb").stdout.split():
        listing = machine(f"dpkg-deb -c {path}").stdout.splitlines()
        names = [line.split()[5].removeprefix(".") for line in listing if not line.startswith("d")]
        conffiles = machine(
            f"dpkg-deb --ctrl-tarfile {path} | tar xO ./conffiles", check=False
        ).stdout.split()
        assert {name for name in names if name.startswith("/etc/")} == set(conffiles)
        assert not [n for n in names if not n.startswith(("/usr/", "/etc/gandiva/", "/etc/logrotate.d/"))]
        assert not [n for n in names if "/local/" in n or "__pycache__" in n or n.endswith((".c", ".pyx"))]
        assert all(line.split()[1] == "root/root" for line in listing)
        # A set-id bit or a file that others may write would be a hole.
        assert not [line for line in listing if not line.startswith("l") and re.match(r".{3,6}s|.{8}w", line)]


def test_libraries_are_hardened(workshop: Machine) -> None:
    workshop("for p in /pk/*.deb; do dpkg-deb -x $p /x; done")
    found = workshop("find /x -name '*.so' -printf '%p\\n'").stdout.split()
    assert any(path.endswith("spank_gandiva.so") for path in found)
    for path in found:
        dynamic = workshop(f"readelf -Wd {path}").stdout
        assert "BIND_NOW" in dynamic or ("(FLAGS_1)" in dynamic and "NOW" in dynamic), path
        assert "GNU_RELRO" in workshop(f"readelf -Wl {path}").stdout, path
        assert re.search(r"GNU_STACK.* RW ", workshop(f"readelf -Wl {path}").stdout), path
        if path.endswith("spank_gandiva.so"):
            symbols = workshop(f"readelf -Ws --dyn-syms {path}").stdout
            assert "__stack_chk_fail" in symbols and "_chk@" in symbols
            # Only what Slurm looks for may be seen from outside.
            exported = re.findall(r" (?:GLOBAL|WEAK) +DEFAULT +\d+ (\w+)", symbols)
            assert exported and all(
                name.startswith(("plugin_", "slurm_spank_", "spank_")) for name in exported
            )


def test_completion_in_real_shells(workshop: Machine) -> None:
    workshop("dpkg-deb -x /pk/gandiva-client_*.deb /x")
    workshop("bash -n /x/usr/share/bash-completion/completions/gandiva")
    workshop("zsh -n /x/usr/share/zsh/vendor-completions/_gandiva")
    place = "/x/usr/share/fish/vendor_completions.d/gandiva.fish"
    offered = workshop(f"fish -c 'source {place}; complete -C \"gandiva report --\"'").stdout
    assert {"--starttime", "--allusers"} <= {line.split("\t")[0] for line in offered.splitlines()}
    offered = workshop(f"fish -c 'source {place}; complete -C \"gandiva config \"'").stdout
    assert {"show", "check", "sample", "slurm"} <= {line.split("\t")[0] for line in offered.splitlines()}


# -- units and the rest of the system ----------------------------------------------------------


def test_units_are_right_and_little_exposed(machine: Machine) -> None:
    machine("dpkg -i /pk/*.deb 2>&1")
    done = machine("systemd-analyze verify --man=no gandiva.service run-gandiva.mount 2>&1", check=False)
    mine = [line for line in done.stdout.splitlines() if "gandiva" in line]
    assert mine == [], done.stdout
    done = machine(
        f"systemd-analyze security --offline=true --no-pager --threshold={EXPOSURE} gandiva.service 2>&1",
        check=False,
    )
    assert done.exit_code == 0, done.stdout
    assert "Overall exposure level" in done.stdout


def test_log_rotation(machine: Machine) -> None:
    machine("dpkg -i /pk/*.deb 2>&1")
    machine("runuser -u gandiva -- sh -c 'echo line > /var/log/gandiva/gandiva.log'")
    done = machine("logrotate --force --verbose /etc/logrotate.d/gandiva 2>&1")
    assert "error" not in done.stdout, done.stdout
    owners = machine("stat -c '%U %a %n' /var/log/gandiva/*").stdout.splitlines()
    assert set(owners) == {
        "gandiva 640 /var/log/gandiva/gandiva.log",
        "gandiva 644 /var/log/gandiva/gandiva.log.1",
    } or set(owners) == {
        "gandiva 640 /var/log/gandiva/gandiva.log",
        "gandiva 640 /var/log/gandiva/gandiva.log.1",
    }


def test_install_remove_install_purge(machine: Machine) -> None:
    """What comes goes again; scripts may run twice; nothing starts."""
    before = machine.files()
    installed = machine("dpkg -i /pk/*.deb 2>&1").stdout
    assert "installed, not started" in installed
    version = machine("dpkg-query -W -f '${Version}' gandiva-common").stdout
    assert machine("gandiva --version").stdout.split() == ["gandiva", re.split(r"[~+-]", version)[0]]
    assert machine("dpkg --verify gandiva-common gandiva-client gandiva-controller gandiva-node").stdout == ""
    user = machine("getent passwd gandiva").stdout.strip().split(":")
    assert int(user[2]) < 1000 and user[5:] == ["/var/lib/gandiva", "/usr/sbin/nologin"]
    assert machine("stat -c '%U %a' /var/lib/gandiva /var/log/gandiva").stdout == "gandiva 750\n" * 2
    # Enabled units would start at the next boot: the daemon only when its administrator says so.
    enabled = machine("ls -R /etc/systemd/system").stdout
    assert "gandiva.service" not in enabled and "run-gandiva.mount" in enabled
    restart = machine("grep deb-systemd-invoke /var/lib/dpkg/info/gandiva-controller.postinst").stdout
    assert "restart" in restart and "gandiva.service" in restart

    # What its use leaves behind: a journal, logs, the key, compiled code.
    machine("touch /var/lib/gandiva/journal.sqlite /var/log/gandiva/gandiva.log /etc/gandiva/agent_key")
    machine("gandiva config show; gandiva report --help; gandiva-agent --help", check=False)
    for name in ("gandiva-controller", "gandiva-node", "gandiva-slurm-plugin"):
        script = f"/var/lib/dpkg/info/{name}.postinst"
        machine(f"[ ! -e {script} ] || {{ {script} configure && {script} configure {version}; }} 2>&1")

    machine("dpkg --remove $(dpkg-query -W -f '${Package}\\n' 'gandiva-*') 2>&1")
    kept = {name for name in machine.files() - before if "/systemd/" not in name}
    assert {"/etc/gandiva/gandiva.toml", "/var/lib/gandiva/journal.sqlite", "/etc/gandiva/agent_key"} <= kept
    assert not [name for name in kept if name.startswith("/usr/")]

    machine("dpkg -i /pk/*.deb 2>&1")
    machine("dpkg --purge $(dpkg-query -W -f '${Package}\\n' 'gandiva-*') 2>&1")
    left = machine.files() - before
    assert left == set()
    assert before - machine.files() == set()


@LONG
def test_a_second_build_is_the_same(client: Any, folder: Path) -> None:
    def digests() -> dict[str, str]:
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.glob("*.deb")}

    first = digests()
    packages.Packages(client, RELEASE, print).ensure(again=True)
    assert digests() == first


# -- a cluster from packages -------------------------------------------------------------------


@pytest.fixture(scope="module")
def packaged(client: Any, folder: Path) -> Iterator[Site]:
    """A cluster whose hosts have packages and nothing else of Gandiva ($GANDIVA_CLUSTER, if it is one)."""
    existing = os.environ.get("GANDIVA_CLUSTER")
    if existing and (mini := MiniCluster.attach(existing)).spec.install == "packages":
        site = Site(mini, nodes=mini.spec.node_names)
        site.start_controller()
        yield site
        return
    remove_leftovers(client, _PREFIX)
    assert list(folder.glob("*.deb"))
    spec = ClusterSpec(name=f"{_PREFIX}{os.getpid()}", release=RELEASE, install="packages")
    mini = MiniCluster(spec, print)
    try:
        mini.up()
        site = Site(mini, nodes=spec.node_names)
        for user in ("alice", "bob"):
            mini.exec("login", "cp -r /usr/share/doc/gandiva-client/examples .", user=user)
        site.start_controller()
        yield site
    except BaseException:
        mini.gather_logs(images.LOGS / "packages")
        raise
    finally:
        if not os.environ.get("KEEP"):
            mini.down()


def test_every_host_has_its_packages_only(packaged: Site) -> None:
    def installed(host: str) -> set[str]:
        command = "dpkg-query -W -f '${db:Status-Abbrev} ${Package}\\n' 'gandiva*' | sed -n 's/^ii *//p'"
        return set(packaged.cluster.exec(host, command, check=False).stdout.split())

    built = {
        path.name.partition("_")[0] for path in (images.REPOSITORY_ROOT / "build/deb" / RELEASE).glob("*.deb")
    }
    for host in packaged.cluster.spec.hosts:
        assert installed(host.name) == set(packages.PACKAGES_OF[host.role]) & built
        assert packaged.cluster.exec(host.name, "ls -d /opt/gandiva", check=False).exit_code != 0
    assert packaged.cluster.exec("n1", "command -v gandiva", check=False).exit_code != 0
    assert packaged.cluster.exec("login", "id gandiva", check=False).exit_code != 0


def test_the_controller_runs_as_its_user_with_little_right(packaged: Site) -> None:
    process = packaged.cluster.exec(
        "ctl", "ps -o user=,args= -p $(cat /run/slurm/gandiva.pid)"
    ).stdout.split()
    assert process[0] == "gandiva" and "/usr/bin/gandiva" in process
    level = packaged.cluster.exec("ctl", "sacctmgr -nP show user gandiva format=AdminLevel").stdout.strip()
    assert level == "Operator"
    assert f"adapter {ADAPTER}" in packaged.cluster.controller_log()
    # The shipped settings say it, too: nobody has to know which releases have pyslurm.
    assert f'#adapter = "{ADAPTER}"' in packaged.cluster.exec("login", "gandiva config sample").stdout


def test_two_jobs_take_turns(packaged: Site) -> None:
    """Time-slicing, the job side, the agent, report and explain, all from packages."""
    where = ("--gandiva", "--gres=gpu:4", "-w", "n1")
    alice = packaged.submit("alice", f"{TRAIN} --gpus 4 --steps 160", *where)
    packaged.wait_on_gpu(alice)
    script = f"python3 -c 'import gandiva; print(gandiva.__file__)'; {TRAIN} --gpus 4 --steps 160"
    bob = packaged.submit("bob", script, *where)
    states = packaged.wait_ended([alice, bob], 180)
    assert set(states.values()) == {"COMPLETED"}, packaged.log_tail()
    rows = {row["job_id"]: row for row in packaged.report()}
    assert rows[alice]["suspends"] >= 1, "it was never suspended: the test shows nothing"
    assert overlaps(packaged.holds()) == []
    assert "/usr/share/gandiva/jobside/gandiva/__init__.py" in packaged.output("bob", bob)
    told = packaged.cluster.exec("login", ["gandiva", "explain", str(alice)], user="alice").stdout
    assert "suspend" in told, told
    status = packaged.cluster.exec("login", ["gandiva", "status", "--json"], user="alice").stdout
    assert json.loads(status)
    listing = "ls /run/gandiva | grep -cx '[0-9]*' || true"
    packaged.wait(
        "control blocks removed", lambda: packaged.cluster.exec("n1", listing).stdout.strip() == "0", 20
    )


def test_the_key_opens_the_agent_and_nothing_else(packaged: Site) -> None:
    options = "-i /etc/gandiva/agent_key -o UserKnownHostsFile=/etc/gandiva/known_hosts -o BatchMode=yes"
    command = f"runuser -u gandiva -- ssh {options} root@n1"
    done = packaged.cluster.exec("ctl", f"{command} id < /dev/null", check=False)
    assert done.exit_code != 0 and "uid=" not in done.stdout
    done = packaged.cluster.exec(
        "ctl", f'echo \'{{"id":1,"verb":"hello","deadline_seconds":20}}\' | {command} gandiva-agent n1'
    )
    hello = json.loads(done.stdout)
    assert hello["ok"] and len(hello["result"]["gpus"]) == 4


NEWER = """
    set -e
    mkdir -p /tmp/newer; cd /tmp/newer
    for package in /pk/*.deb; do
        dpkg-deb -R "$package" tree
        sed -i 's/0\\.2\\.0~/0.2.0+next~/' tree/DEBIAN/control
        dpkg-deb -Znone --root-owner-group -b tree "${package##*/}"
        rm -rf tree
    done
"""


@LONG
def test_an_upgrade_keeps_jobs_and_settings(packaged: Site, machine: Machine, tmp_path: Path) -> None:
    """Packages of a higher version come in while one job runs and one is suspended."""
    machine(textwrap.dedent(NEWER), timeout_seconds=300)
    for name in machine("ls /tmp/newer").stdout.split():
        content = b"".join(machine.client.api.get_archive(machine.container.id, f"/tmp/newer/{name}")[0])
        (tmp_path / name).write_bytes(_only_file(content))
    where = ("--gandiva", "--gres=gpu:4", "-w", "n2")
    jobs = [packaged.submit(user, f"{TRAIN} --gpus 4 --steps 400", *where) for user in ("alice", "bob")]
    packaged.wait_on_gpu(*jobs)
    packaged.wait("one of two suspended", lambda: "SUSPENDED" in packaged.states(jobs).values())
    settings = packaged.cluster.read_file("ctl", "/etc/gandiva/gandiva.toml")

    packaged.cluster.install_packages(tmp_path)
    versions = packaged.cluster.exec("ctl", "dpkg-query -W -f '${Version}\\n' 'gandiva-*'").stdout.split()
    assert all("+next" in version for version in versions)
    # What the package's script does where systemd runs.
    packaged.cluster.service("ctl", "gandiva").restart()
    assert packaged.cluster.read_file("ctl", "/etc/gandiva/gandiva.toml") == settings
    assert set(packaged.wait_ended(jobs, 240).values()) == {"COMPLETED"}
    assert overlaps(packaged.holds()) == []


def _only_file(archive: bytes) -> bytes:
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        content = tar.extractfile(tar.getmembers()[0])
        assert content is not None
        return content.read()


# What keeps an init system from running in a container: what else the image would start, and the control
# groups, of which systemd gets a hierarchy of its own.
BOOT = """
    set -e
    for unit in slurmctld slurmd slurmdbd mariadb ssh cron; do
        ln -sf /dev/null /etc/systemd/system/$unit.service
    done
    rm -f /usr/sbin/policy-rc.d
    umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup
    exec /lib/systemd/systemd
"""


def boot(client: Any, labels: dict[str, str], files: dict[str, Content], **host: Any) -> Iterator[Machine]:
    """A machine with a real systemd; `files` are there before it starts, `host` is its network and disks."""
    api = client.api
    made = api.create_container(
        images.Images(client, RELEASE, print).ensure_site(),
        ["bash", "-c", BOOT],
        hostname="ops",
        labels=labels,
        environment={"container": "docker"},
        host_config=api.create_host_config(
            cap_add=["SYS_ADMIN"],
            security_opt=["seccomp=unconfined", "apparmor=unconfined"],
            cgroupns="private",
            tmpfs={"/run": "", "/run/lock": ""},
            **host,
        ),
    )
    machine = Machine(client, client.containers.get(made["Id"]))
    try:
        put_files(client, made["Id"], files)
        machine.container.start()
        machine("for i in $(seq 300); do [ -S /run/systemd/private ] && exit; sleep 0.1; done; exit 1")
        yield machine
    finally:
        machine.container.remove(force=True)


@pytest.fixture
def booted(packaged: Site, client: Any, folder: Path) -> Iterator[Machine]:
    """One more host of the cluster, for the controller, with a real systemd. /pk has the packages."""
    spec = packaged.cluster.spec
    network = f"gandiva-{spec.name}"
    # With the cluster's label it goes when the cluster goes.
    labels = {LABEL: spec.name, HOST_LABEL: "ops", SPEC_LABEL: spec.model_dump_json()}
    key = get_file(client, f"gandiva-{spec.name}-ctl", "/etc/munge/munge.key")
    binds = {f"{network}-conf": {"bind": "/etc/slurm", "mode": "rw"}}
    files = {"/etc/munge/munge.key": Content(key, 0o400)}
    for machine in boot(client, labels, files, network_mode=network, binds=binds):
        machine.put(list(packages.of_role(folder, "ctl").values()))
        machine("chown munge: /etc/munge/munge.key && systemctl restart munge.service", timeout_seconds=60)
        yield machine


@LONG
def test_control_blocks_are_mounted_once_and_never_over_jobs(client: Any, folder: Path) -> None:
    for node in boot(client, {images.LABEL: "packages"}, {}):
        node.put(list(packages.of_role(folder, "node").values()))
        node("dpkg -i /pk/*.deb 2>&1")
        assert node("systemctl is-active run-gandiva.mount").stdout.strip() == "active"
        options = node("findmnt -no OPTIONS /run/gandiva").stdout
        assert {"nosuid", "nodev", "noexec", "size=65536k"} <= set(options.strip().split(","))
        # A job is there while the package is upgraded; what its user writes is on a file system of its own.
        job = "SLURM_JOB_ID=77 SLURM_JOB_UID=65534 SLURM_JOB_GID=65534"
        asked = "SLURM_JOB_GPUS=0 SPANK__SLURM_SPANK_OPTION_gandiva_gandiva='(null)'"
        place = "/usr/share/gandiva/slurm"
        assert node(f"{job} {asked} {place}/prolog.d/50-gandiva.sh 2>&1").stdout == ""
        node("dpkg -i /pk/gandiva-node_*.deb 2>&1")
        assert node("ls /run/gandiva").stdout == "77\n"
        found = node("findmnt -no OPTIONS /run/gandiva/77/ranks").stdout.strip().split(",")
        assert {"nosuid", "nodev", "noexec", "size=8192k", "nr_inodes=1024", "uid=65534"} <= set(found)
        said = node(
            'echo \'{"id":1,"verb":"hello","args":{},"deadline_seconds":20}\' | gandiva-agent n1', check=False
        ).stdout
        assert '"rank_files":"apart"' in said
        assert node(f"{job} {place}/epilog.d/50-gandiva.sh 2>&1").stdout == ""
        assert node("ls /run/gandiva").stdout == "leader.json\n"
        assert "/run/gandiva/" not in node("cat /proc/mounts").stdout
        # A job is there, and for some reason the mount is not.
        node("systemctl stop run-gandiva.mount && mkdir -p /run/gandiva/88")
        node("systemctl start run-gandiva.mount")
        assert node("ls /run/gandiva").stdout == "88\n"
        node("rmdir /run/gandiva/88 && dpkg --purge gandiva-node 2>&1")
        assert node("ls -d /run/gandiva /run/gpustat", check=False).stdout == ""


@LONG
def test_the_daemon_under_a_real_systemd(packaged: Site, booted: Machine) -> None:
    """The unit with all its restrictions: jobs take turns, reload, upgrade, stop, purge."""
    cluster = packaged.cluster
    # Slurm knows people by number: the same on both hosts, as docs/install.md says.
    uid = cluster.exec("ctl", "id -u gandiva").stdout.strip()
    booted(f"groupadd -r -g {uid} gandiva && useradd -r -u {uid} -g {uid} -d /var/lib/gandiva gandiva")
    booted("dpkg -i /pk/*.deb 2>&1")
    assert booted("systemctl is-enabled gandiva.service", check=False).stdout.strip() == "disabled"
    assert booted("systemctl is-active gandiva.service", check=False).stdout.strip() == "inactive"

    for name, mode in (("agent_key", 0o600), ("known_hosts", 0o644), ("gandiva.toml", 0o644)):
        content = get_file(booted.client, f"gandiva-{cluster.name}-ctl", f"/etc/gandiva/{name}")
        put_files(booted.client, booted.container.id, {f"/etc/gandiva/{name}": Content(content, mode)})
    booted("chown gandiva: /etc/gandiva/agent_key")
    cluster.stop_controller()
    booted("systemctl start gandiva.service || { journalctl -n 50 -u gandiva; exit 1; }", timeout_seconds=60)

    where = ("--gandiva", "--gres=gpu:4", "-w", "n1")
    jobs = [packaged.submit(user, f"{TRAIN} --gpus 4 --steps 300", *where) for user in ("alice", "bob")]
    packaged.wait_on_gpu(*jobs)
    booted("systemctl reload gandiva.service")
    before = booted("systemctl show -P MainPID gandiva.service").stdout
    booted("dpkg -i /pk/*.deb 2>&1")
    assert booted("systemctl is-active gandiva.service").stdout.strip() == "active"
    assert booted("systemctl show -P MainPID gandiva.service").stdout != before, "an upgrade restarts it"
    log = "journalctl --no-pager -o cat -u gandiva.service"
    assert set(packaged.wait_ended(jobs, 240).values()) == {"COMPLETED"}, booted(log).stdout[-3000:]
    rows = booted("gandiva report -a --json --url http://localhost:6822").stdout
    suspends = {row["job_id"]: row["suspends"] for row in json.loads(rows)["jobs"]}
    assert suspends[jobs[0]] >= 1 and overlaps(packaged.holds()) == []

    booted("systemctl stop gandiva.service", timeout_seconds=90)
    assert booted("systemctl show -P Result gandiva.service").stdout.strip() == "success"
    said = booted(log).stdout
    assert f"adapter {ADAPTER}" in said
    # The signs of a restriction that is one too many.
    assert not re.search("Permission denied|Operation not permitted|Read-only file|Traceback", said), said
    booted("dpkg --purge gandiva-controller 2>&1")
    assert booted("systemctl cat gandiva.service 2>&1", check=False).exit_code != 0
    assert booted("ls -d /var/lib/gandiva /var/log/gandiva", check=False).stdout == ""
    packaged.start_controller()


def test_purge_on_the_cluster(packaged: Site) -> None:
    """Last of all: the hosts forget Gandiva, but for what the site has written itself."""
    packaged.cluster.stop_controller()
    for host in packaged.cluster.spec.hosts:
        script = "dpkg --purge $(dpkg-query -W -f '${Package}\\n' 'gandiva*') 2>&1"
        if packages.PACKAGES_OF[host.role]:
            told = packaged.cluster.exec(host.name, script).stdout
            # Slurm's configuration is the site's: it is told that it still names the plugin.
            assert "plugstack.conf.d/gandiva.conf still names" in told
        find = (
            "find / -xdev \\( -path /proc -o -path /sys -o -path /run -o -path /etc/slurm -o -path /shared "
            "\\) -prune -o -iname '*gandiva*' -print | grep -v minicluster"
        )
        left = packaged.cluster.exec(host.name, find, check=False).stdout.split()
        assert left == [], host.name
