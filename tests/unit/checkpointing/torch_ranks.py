# SPDX-License-Identifier: GPL-2.0-or-later
"""Processes that are the ranks of one job, for torch.distributed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def torch_ranks(program: str, world_size: int, *words: str) -> list[str]:
    """What each rank of the program has printed. The program may use gloo; it is killed after two minutes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    common |= {"WORLD_SIZE": str(world_size), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    # Debian's PyTorch is built without libuv, which it asks for by default.
    common["USE_LIBUV"] = "0"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, *words],
            env={**os.environ, **common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        return [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
