#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What torchrun does, for train_mock.py: starts several processes of one training on this node.

    srun --gres=gpu:2 python3 examples/mockrun.py 2 examples/train_mock.py --keep-context

Each process gets RANK, WORLD_SIZE and LOCAL_RANK, and sees all GPUs of the job. When one fails the others are
ended too, and its exit status is that of the launcher.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time


def main() -> int:
    if len(sys.argv) < 3 or not sys.argv[1].isdecimal() or int(sys.argv[1]) < 1:
        print("usage: mockrun.py PROCESSES SCRIPT [ARGUMENT …]", file=sys.stderr)
        return 2
    count = int(sys.argv[1])
    processes = [
        subprocess.Popen(
            [sys.executable, *sys.argv[2:]],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)},
        )
        for rank in range(count)
    ]
    while True:
        codes = [process.poll() for process in processes]
        failed = next((code for code in codes if code), None)
        if failed is not None:
            for process in processes:
                process.kill()
            return failed if failed > 0 else 128 - failed
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
