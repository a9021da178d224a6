# SPDX-License-Identifier: GPL-2.0-or-later
"""Fuzzing of everything that comes from outside: see docs/reliability-fuzzing.md."""
