# SPDX-License-Identifier: GPL-2.0-or-later
"""Traces of jobs: five formats, read strictly."""

from controller.simulation.traces.base import TraceError, TraceJob
from controller.simulation.traces.formats import FORMATS, read_trace

__all__ = ["FORMATS", "TraceError", "TraceJob", "read_trace"]
