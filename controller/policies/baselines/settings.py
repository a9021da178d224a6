# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of the baselines."""

from __future__ import annotations

from controller.settings.base import Section, setting


class _Ordered(Section):
    backfill: bool = setting(True, "Jobs may pass one that does not fit now. false: it blocks all behind it.")


class FifoSkipSettings(Section):
    """First come, first served, but later jobs may pass one that does not fit now. No preemption."""


class SjfSettings(_Ordered):
    """Smallest job first: the fewest GPUs. Preempts."""


class SrtfSettings(_Ordered):
    """Shortest remaining time first. Preempts. Only where durations are known."""


class SrsfSettings(_Ordered):
    """Shortest remaining service (time x GPUs) first. Preempts. Only where durations are known."""
