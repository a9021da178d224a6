# SPDX-License-Identifier: GPL-2.0-or-later
"""From what Slurm and the nodes say to one snapshot, and what changed in it."""
