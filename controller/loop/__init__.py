# SPDX-License-Identifier: GPL-2.0-or-later
"""Observe, decide, act, record: the one loop of the daemon and of simulations."""
