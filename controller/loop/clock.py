# SPDX-License-Identifier: GPL-2.0-or-later
"""The clock of the machine."""

import time
from pathlib import Path


class SystemClock:
    """The machine's time of day at start plus the monotonic time since: a clock that is set while the
    controller runs shortens or lengthens no slice."""

    def __init__(self) -> None:
        self._start_wall = time.time()
        self._start_monotonic = time.monotonic()

    def now(self) -> float:
        return self._start_wall + (time.monotonic() - self._start_monotonic)

    def uptime(self) -> tuple[str, float]:
        try:
            boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            boot_id = ""
        return boot_id, time.clock_gettime(time.CLOCK_BOOTTIME)
