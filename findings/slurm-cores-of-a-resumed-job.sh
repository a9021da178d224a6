#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# A suspended job's cores are given to another one. Both run after the resume; then the other one ends.
#
# Guess: the cores of the job that runs on are allocated. Slurm counts them as free, and starts a third job on them.
# The same on 24.11.5 and 26.05.5 (docs/slurm-facts.md).

source "$(dirname "$0")/slurm.bash"
with_slurm
allocated() { scontrol -o show node | tr ' ' '\n' | sed -n 's/^CPUAlloc=//p'; }
first=$(submit -n 4 --wrap 'sleep 999')
expect "CPUAlloc with the first job" 4 "$(allocated)" 4
scontrol suspend "$first"
second=$(submit -n 4 --wrap 'sleep 999')
scontrol resume "$first"
eventually 60 is "$first" JobState RUNNING
scancel "$second"
eventually 60 is "$second" JobState CANCELLED
eventually 60 eval '[ "$(squeue -h -t all -j '"$second"' -o %T)" = CANCELLED ]'
expect "CPUAlloc: the first job runs, the second is gone" 4 "$(allocated)" 0
third=$(submit -n 4 --wrap 'sleep 999')
expect "running jobs of 4 cores each on a node of 4" 1 "$(squeue -h -t R -j "$first,$third" | wc -l)" 2
