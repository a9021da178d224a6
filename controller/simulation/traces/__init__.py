# SPDX-License-Identifier: GPL-2.0-or-later
"""Traces of jobs: five formats, read strictly."""

from controller.simulation.traces.base import LeftOut, NoJobs, TraceError, TraceJob, in_words
from controller.simulation.traces.formats import FORMATS, read_trace

__all__ = ["FORMATS", "LeftOut", "NoJobs", "TraceError", "TraceJob", "in_words", "read_trace"]
