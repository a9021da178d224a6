#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# A job that is cancelled while it is suspended: when did it end?
#
# Guess: at the scancel. Slurm says: at its last suspension, so the time it was suspended is no part of the job at all.
# The same on 24.11.5 and 26.05.5 (docs/slurm-facts.md).

source "$(dirname "$0")/slurm.bash"
with_slurm
job=$(submit --wrap 'sleep 999')
scontrol suspend "$job"
suspended=$(said "$job" SuspendTime)
sleep 5
scancel "$job"
eventually 60 is "$job" JobState CANCELLED
expect "EndTime, suspended at $suspended" "5 s later" "$(said "$job" EndTime)" "$suspended"
