# SPDX-License-Identifier: GPL-2.0-or-later
"""Files and folders of the controller: whether its user can use them, and other users cannot read secrets."""

import contextlib
import grp
import os
import pwd
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from controller.checks.finding import Finding, Subject
from controller.nodes.installed import filesystem_of
from controller.settings.ownership import foreign_writer, site_files
from controller.settings.schema import Settings

NETWORK = ("nfs", "nfs4", "gpfs", "lustre", "beegfs", "cifs", "fuse.sshfs", "ceph", "9p")
MIN_FREE_BYTES = 500_000_000
Judge = Callable[[Subject, os.stat_result], Finding]
_SCAN = "ssh-keyscan NODE… > {}"


@dataclass(frozen=True)
class Account:
    """The daemon's user."""

    name: str
    uid: int
    gids: frozenset[int]

    @classmethod
    def find(cls, name: str) -> "Account | None":
        """None: this host does not know the user."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            return None
        groups = {entry.pw_gid}
        with contextlib.suppress(OSError):
            groups.update(os.getgrouplist(name, entry.pw_gid))
        return cls(name, entry.pw_uid, frozenset(groups))

    def may(self, status: os.stat_result, what: int) -> bool:
        """Whether the mode lets it read (4), write (2), enter (1)."""
        if self.uid == 0:
            return True
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid in self.gids else 0
        return status.st_mode >> shift & what == what


def is_controllers(settings: Settings, host: str) -> bool:
    """Whether this is the controller's host (or one that is to take its place: it has the key).

    May ask the network for the address of a name.
    """
    leader = settings.cluster.controller_host
    if leader == "localhost" or leader.split(".")[0] == host or settings.nodes.ssh_key.exists():
        return True
    # It may be an alias. Only an address of this host can be bound.
    try:
        found = socket.getaddrinfo(leader, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, _, _, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address[0], 0))
            return True
    return False


def judge_client(settings: Settings, path: Path, host: str) -> Iterator[Finding]:
    """On another host than the controller's: its users must be able to read the settings."""
    subject = Subject(str(path), "settings")
    try:
        yield _open(subject, path.stat())
    except OSError as failure:
        yield _unseen(subject, failure)
    leader = settings.cluster.controller_host
    found = f"is on {leader}: run this there for its key, its journal and the agents"
    yield Subject(host, "controller").ok(found)


def judge_permissions(settings: Settings, path: Path, user: str, host: str) -> Iterator[Finding]:
    """On the controller's host. `path`: the settings file. `user`: the daemon's."""
    subject = Subject(host, "user")
    account = Account.find(user)
    if account is None:
        yield subject.error(
            f"there is no user {user} on this host",
            "systemd-sysusers (with configs/sysusers.d/gandiva.conf), or --user NAME if it has another",
        )
        return
    yield subject.ok(f"{user}, uid {account.uid}")
    yield _trusted(path, account, "settings", f"gandiva config sample > {path}", _open)
    key = settings.nodes.ssh_key
    make = f"as {user}: ssh-keygen -t ed25519 -N '' -f {key}"
    anew = "a new one, and new authorized_keys on the nodes"
    yield _secret(key, account, "SSH key", make, 0o600, "it opens the agents on all nodes", anew)
    hosts = settings.nodes.known_hosts
    yield _trusted(hosts, account, "known_hosts", _SCAN.format(hosts), _known_hosts)
    for file in site_files((settings.policy.name, *settings.policy.moves)):
        yield _trusted(file, account, "policy", f"[policy] name another file than {file}")
    if (token := settings.api.token_file) is not None:
        make = f"(umask 027; openssl rand -hex 32 > {token}); chown {user} {token}"
        yield _secret(token, account, "API token", make, 0o640, "it shows all users' jobs", "a new one")
    yield from _journal_folder(settings.journal.path, account)
    if settings.log.file is not None:
        yield _folder(settings.log.file.parent, account, "log folder")


def _judged(
    path: Path, account: Account, check: str, make: str, right: str, judge: Judge, needs: int = 4
) -> Finding:
    """What `judge` finds, where the user can reach a path and has the access that it `needs` (`Account.may`).
    `make`, `right`: the commands that make it, and that give the user the access."""
    subject = Subject(str(path), check)
    try:
        for folder in reversed(path.parents):
            if not account.may(status := folder.stat(), 1):
                change = f"chmod o+x {folder}, or give it to {account.name}"
                return subject.error(f"{account.name} may not enter {folder} ({_mode(status)})", change)
        status = path.stat()
        if not account.may(status, needs):
            do = "write" if needs & 2 else "read"
            return subject.error(f"{account.name} may not {do} it ({_mode(status)})", right)
        return judge(subject, status)
    except FileNotFoundError:
        return subject.error("is not there", make)
    except OSError as failure:
        return _unseen(subject, failure)


def _unseen(subject: Subject, failure: OSError) -> Finding:
    found = f"cannot be examined: {failure.strerror}"
    return subject.warning(found, "run this check as root on the controller's host")


def _trusted(path: Path, account: Account, check: str, make: str, judge: Judge | None = None) -> Finding:
    """A file that the daemon runs or trusts: others must not be able to change it."""

    def trusted(subject: Subject, status: os.stat_result) -> Finding:
        if why := foreign_writer(path, account.uid):
            return subject.error(*why)
        return judge(subject, status) if judge else subject.ok(f"only root and {account.name} can write it")

    return _judged(path, account, check, make, f"chmod 644 {path}", trusted)


def _open(subject: Subject, status: os.stat_result) -> Finding:
    if not status.st_mode & stat.S_IROTH:
        return subject.warning(
            f"users may not read it ({_mode(status)}): gandiva top and report find no controller",
            f"chmod 644 {subject.where}; there is no secret in it",
        )
    if status.st_mode & stat.S_IWOTH:
        return subject.error(f"every user may write it ({_mode(status)})", f"chmod 644 {subject.where}")
    return subject.ok("readable by all")


def _secret(path: Path, account: Account, check: str, make: str, mode: int, risk: str, anew: str) -> Finding:
    right = f"chown {account.name} {path}; chmod {mode:o} {path}"

    def secret(subject: Subject, status: os.stat_result) -> Finding:
        if status.st_mode & 0o077 & ~mode or status.st_uid not in (0, account.uid):
            text = f"others may use it ({_mode(status)}); {risk}"
            return subject.error(text, f"{right}; if other users could read it: {anew}")
        return subject.ok(f"not for others ({_mode(status)})")

    return _judged(path, account, check, make, right, secret)


def _known_hosts(subject: Subject, status: os.stat_result) -> Finding:
    if not status.st_size:
        return subject.error("is empty", _SCAN.format(subject.where))
    return subject.ok("readable")


def _journal_folder(journal: Path, account: Account) -> Iterator[Finding]:
    folder = journal.parent
    finding = _folder(folder, account, "journal folder")
    yield finding
    if finding.change:
        return
    kind = filesystem_of(folder)
    if kind in NETWORK:
        yield Subject(str(folder), "journal folder").error(
            f"is on {kind}: SQLite's WAL mode does not work on network file systems",
            "[journal] path = a file on a local disk",
        )
    with contextlib.suppress(OSError):
        disk = os.statvfs(folder)
        free = disk.f_bavail * disk.f_frsize
        if free < MIN_FREE_BYTES:
            yield Subject(str(folder), "journal folder").error(
                f"{free / 1e6:.0f} MB are free",
                "make room, or lower [journal] detail_days; what cannot be written is lost at the next stop",
            )
    # Where it is missing, or its folder cannot be read, `judge_journal` says so.
    with contextlib.suppress(OSError):
        status = journal.stat()
        if not account.may(status, 6):
            yield Subject(str(journal), "journal").error(
                f"{account.name} may not write it ({_mode(status)})", f"chown {account.name}: {journal}*"
            )


def _folder(path: Path, account: Account, check: str) -> Finding:
    right = f"install -d -o {account.name} -m 750 {path}"

    def folder(subject: Subject, status: os.stat_result) -> Finding:
        if not stat.S_ISDIR(status.st_mode):
            return subject.error("is no folder", right)
        if status.st_mode & stat.S_IWOTH:
            return subject.error(f"every user may write it ({_mode(status)})", f"chmod o-w {path}")
        return subject.ok(f"{account.name} may write it")

    return _judged(path, account, check, right, right, folder, needs=7)


def _mode(status: os.stat_result) -> str:
    """`-rw-r----- root:slurm`."""
    owner, group = str(status.st_uid), str(status.st_gid)
    with contextlib.suppress(KeyError):
        owner = pwd.getpwuid(status.st_uid).pw_name
    with contextlib.suppress(KeyError):
        group = grp.getgrgid(status.st_gid).gr_name
    return f"{stat.filemode(status.st_mode)} {owner}:{group}"
