# SPDX-License-Identifier: GPL-2.0-or-later
"""The mechanism that serves allocations: in rounds, each job receives its fraction of the time on each GPU
type (Gavel, OSDI'20)."""
