# SPDX-License-Identifier: GPL-2.0-or-later
"""`mapped` and `warm`: a job that starts on another node finds its programs in the page cache there.

A training program maps gigabytes of libraries. While the job saves its state on the node that it leaves, the
node that it comes to reads these files, as the job's user and with the lowest priority.
"""

import os
import pwd
import re
import subprocess
import sys
from pathlib import Path

from controller.agent.deadline import Deadline
from controller.agent.node import Node
from controller.nodes import protocol
from controller.nodes.protocol import MAX_FILES, AgentError, ErrorKind

FREE_SHARE = 0.25
"""Of the machine's free memory, so much may be filled."""
READER = Path(__file__).with_name("page_cache.py")

_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ [1-9]\d* +(/[^\n]*)")
"""A line of /proc/PID/maps that names a file."""
_NOT_ON_DISK = ("/dev/", "/memfd:", "/proc/", "/sys/", "/SYSV")


def mapped(node: Node, args: protocol.JobArgs, _deadline: Deadline) -> dict[str, object]:
    """Files that processes of the job have mapped, those with the most bytes first."""
    sizes: dict[str, int] = {}
    for process in node.processes.of_job(args.job_id):
        for begin, end, path in _MAPPING.findall(node.processes.maps(process.pid)):
            if not (path.startswith(_NOT_ON_DISK) or path.endswith(" (deleted)")):
                sizes[path] = sizes.get(path, 0) + int(end, 16) - int(begin, 16)
    most = sorted(sizes, key=lambda path: (-sizes[path], path))
    return {"files": [path for path in most if len(path) <= protocol.MAX_PATH_CHARS][:MAX_FILES]}


def warm(node: Node, args: protocol.WarmArgs, deadline: Deadline) -> dict[str, object]:
    """Read these files as this user. One request at a time: others wait. Raises AgentError."""
    try:
        user = pwd.getpwuid(args.uid)
    except KeyError:
        raise AgentError(ErrorKind.UNSUPPORTED, f"no user has the id {args.uid} here") from None
    machine = node.host_memory.machine()
    most_bytes = int(FREE_SHARE * machine.free_bytes) if machine is not None else 0
    groups = os.getgrouplist(user.pw_name, user.pw_gid)
    words = (str(most_bytes), str(args.uid), str(user.pw_gid), ",".join(map(str, groups)))
    reader = subprocess.Popen(
        [sys.executable, "-I", str(READER), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},
    )
    paths = "\0".join(args.files).encode("utf-8", "surrogateescape")
    try:
        output, _ = reader.communicate(paths, timeout=deadline.left_seconds)
    except subprocess.TimeoutExpired:
        # It is not waited for: a file system that hangs keeps it for as long as it hangs.
        reader.kill()
        raise AgentError(ErrorKind.DEADLINE, f"files are not read after {deadline.seconds:.0f} s") from None
    if reader.returncode:
        raise AgentError(ErrorKind.INTERNAL, f"the reader of files ended with status {reader.returncode}")
    return {"bytes": int(output)}
