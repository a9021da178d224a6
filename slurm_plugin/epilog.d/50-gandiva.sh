#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Epilog, run by slurmd as root when a job has ended on a node: removes its control block. It always
# succeeds: Slurm drains a node whose epilog fails, and a folder left behind on a tmpfs is not worth that.

set -u
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH

note() {
    echo "gandiva: $*" >&2
    logger -t gandiva-epilog -p daemon.warning -- "job ${SLURM_JOB_ID:-?}: $*" 2>/dev/null || :
}

# What is mounted in slurmd's own mount namespace only is mounted elsewhere still.
where_all_see_it() {
    theirs=$(readlink /proc/1/ns/mnt 2>/dev/null) || theirs=
    if [ -z "$theirs" ] || [ "$theirs" = "$(readlink /proc/self/ns/mnt)" ]; then
        timeout 5 "$@"
    else
        timeout 5 nsenter --mount=/proc/1/ns/mnt -- "$@"
    fi
}

job=${SLURM_JOB_ID:-}
case $job in '' | *[!0-9]*) exit 0 ;; esac

run_dir=/run/gandiva
settings=${0%/*}/../gandiva/gandiva.env
if [ -r "$settings" ]; then
    while IFS='=' read -r key value; do
        [ "$key" != GANDIVA_RUN_DIR ] || run_dir=$value
    done <"$settings"
fi
case $run_dir in
*%n*)
    node=${SLURMD_NODENAME:-}
    case $node in
    '' | *[!A-Za-z0-9._-]*)
        note "no usable node name for $run_dir: control block not removed"
        exit 0
        ;;
    esac
    run_dir=${run_dir%%%n*}$node${run_dir#*%n}
    ;;
esac
case $run_dir in /*) ;; *) exit 0 ;; esac

block=$run_dir/$job
[ -e "$block" ] || [ -h "$block" ] || exit 0
if [ -h "$run_dir" ] || [ ! -O "$run_dir" ] || [ -n "$(find "$run_dir" -maxdepth 0 -perm /022)" ]; then
    note "$run_dir is not root's alone: control block not removed"
    exit 0
fi

# Out of sight first, so that the job's next run on this node finds no half-removed block. `ranks` is a file
# system of its own; where it could not be, the user may have filled it: rm follows no links, and does not get
# for ever. What an epilog before this one had no time for is in the way of nobody, and goes now.
gone=$run_dir/.gone.$job.$$
mv -nT -- "$block" "$gone" 2>/dev/null || note "cannot remove $block"
for old in "$run_dir"/.gone.*; do
    [ ! -h "$old" ] || continue
    # Not looked at first, and not for ever: over ours the user may have mounted what never answers (FUSE).
    for _ in 1 2 3 4; do
        where_all_see_it umount -l -c -- "$old/ranks" 2>/dev/null || break
    done
done
timeout 20 rm -rf --one-file-system -- "$run_dir"/.gone.* || note "not all of $run_dir/.gone.* could be removed"
exit 0
