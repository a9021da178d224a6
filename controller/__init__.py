# SPDX-License-Identifier: GPL-2.0-or-later
"""The Gandiva controller: observes a Slurm cluster, plans, and carries plans out."""

__version__ = "0.2.0"
