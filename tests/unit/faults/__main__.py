# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m tests.unit.faults [quick]`: every simulated fault; the last line says how many passed."""

from __future__ import annotations

import logging
import sys

from tests.unit.faults.scenarios import main

logging.disable(logging.CRITICAL)
sys.exit(main(quick="quick" in sys.argv[1:]))
