# SPDX-License-Identifier: GPL-2.0-or-later
"""The controller's memory on disk: decisions, slices, jobs, operations under way, and its own state.

One process writes with `Journal`; any number of threads and processes read with `JournalReader`. A simulation
keeps the same in memory with `MemoryJournal`. All times are seconds since the epoch.
"""

from controller.journal.memory import MemoryJournal
from controller.journal.reader import JobFilter, JournalReader
from controller.journal.records import (
    Event,
    JobRecord,
    JobRow,
    Slice,
    gpu_names,
    parse_gpus,
)
from controller.journal.writer import Journal
