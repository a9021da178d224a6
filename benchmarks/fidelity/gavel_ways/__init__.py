# SPDX-License-Identifier: GPL-2.0-or-later
"""Gavel's simulator (stanford-futuredata/gavel at c4fa400), as own parts: for comparisons with it."""
