# SPDX-License-Identifier: GPL-2.0-or-later
"""Exclusive gangs in an order: what Tiresias and the baselines have in common."""
