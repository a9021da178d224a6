# SPDX-License-Identifier: GPL-2.0-or-later
"""What the loop writes to: a file, or the same in memory. `Journal` says what the calls mean."""

from typing import TypeAlias

from controller.journal.memory import MemoryJournal
from controller.journal.writer import Journal

JournalPort: TypeAlias = Journal | MemoryJournal
