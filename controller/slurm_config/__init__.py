# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm's own configuration files, made from one description of the cluster.

A description (TOML, checked by pydantic) and the options of the installation go in, a mapping of file names
to texts comes out; only `fragments.write` touches the disk."""
