# SPDX-License-Identifier: MIT
"""Starts one process of a training script for each GPU that this start of the job has.

    python3 -m gandiva.launch train.py --epochs 90

Each process is a rank with RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as
torchrun gives them, and sees all GPUs of the job. A job that has grown or shrunk starts as many ranks as it
has GPUs now. When one fails, the others are ended, and its status is that of the launcher. One node only.
"""

import os
import signal
import subprocess
import sys
import time
from typing import Any, List, Mapping, Optional, Sequence

from ._processes import PASSED_ON, end, free_port, send, status, variables

LOOK_SECONDS = 0.1
END_SECONDS = 10.0
"""Processes that are told to end have so long; then they are killed."""


def gpus(environ: Mapping[str, str]) -> int:
    """How many GPUs this start of the job has on this node; 1 where nothing says it.

    Raises ValueError where SLURM_GPUS_ON_NODE is no number.
    """
    if "CUDA_VISIBLE_DEVICES" in environ:
        return max(1, len([name for name in environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]))
    return max(1, int(environ.get("SLURM_GPUS_ON_NODE", "") or "1"))


def run(command: Sequence[str], ranks: int) -> int:
    """Run that many processes of the command, and wait for all. The exit status: 128 and the signal's number
    where a signal has ended the first that failed."""
    port = free_port()
    processes: List["subprocess.Popen[bytes]"] = []
    asked: List[int] = []

    def pass_on(number: int, _: Any) -> None:
        asked.append(number)
        send(processes, number)

    for number in (signal.SIGTERM, signal.SIGINT, *PASSED_ON):
        signal.signal(number, pass_on)
    try:
        for rank in range(ranks):
            # PyTorch's store asks for libuv, and some builds have none. For one node either will do.
            environ = {"USE_LIBUV": "0", **os.environ, **variables(rank, ranks, port)}
            processes.append(subprocess.Popen(command, env=environ))
        if asked:
            send(processes, asked[-1])  # It came while they were being started.
        while True:
            code = status(processes)
            if code is not None:
                return code
            time.sleep(LOOK_SECONDS)
    finally:
        end(processes, END_SECONDS)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The exit status of the ranks, or 2 where no script is named."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0].startswith("-"):
        print("usage: python3 -m gandiva.launch SCRIPT [ARGUMENT …]", file=sys.stderr)
        return 2
    return run([sys.executable, *words], gpus(os.environ))


if __name__ == "__main__":
    sys.exit(main())
