# SPDX-License-Identifier: GPL-2.0-or-later
"""The mini cluster: a real Slurm cluster in containers, with mock GPUs."""
