# SPDX-License-Identifier: GPL-2.0-or-later
"""Allocations: which fraction of the time each job is to run on each GPU type."""
