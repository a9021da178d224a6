#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# An operator holds a job that is suspended, and somebody resumes it.
#
# Guess: a resume is refused while the job is held, or the hold counts from the next requeue on. Slurm resumes the job and leaves
# it "JobHeldAdmin" while it runs; a requeue is not held either. The same on 24.11.5 and 26.05.5 (docs/slurm-facts.md).

source "$(dirname "$0")/slurm.bash"
with_slurm SchedulerParameters=requeue_delay=1
job=$(submit --wrap 'sleep 999')
scontrol suspend "$job"
scontrol hold "$job"
expect "Priority of the suspended job after the hold" 0 "$(said "$job" Priority)" 0
scontrol resume "$job"
expect "state after the resume" SUSPENDED "$(said "$job" JobState)" RUNNING
expect "reason of the running job" None "$(said "$job" Reason)" JobHeldAdmin
