#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Prolog, run by slurmd as root before a job's first task on a node: makes the control block of a Gandiva
# job (docs/interfaces.md, section 3) where the node agent has not made it already.
#
# It always succeeds. Slurm drains a node whose prolog fails, and nothing that can go wrong here is worth
# that: a job without a control block waits for the node agent's, and one that somebody tampered with fails
# the job's tasks (the SPANK plugin looks again).
#
# Every folder above what is made here is root's alone, which is checked; so nobody can put a link in the
# way. Only `ranks` belongs to the user, and nothing in it is touched.

set -u
umask 022
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
LC_ALL=C
export LC_ALL

note() {
    echo "gandiva: $*" >&2
    logger -t gandiva-prolog -p daemon.warning -- "job ${SLURM_JOB_ID:-?}: $*" 2>/dev/null || :
}

give_up() {
    note "$*: the job has no control block of the prolog's: it waits for the node agent's"
    exit 0
}

# Only the keys this script knows; the file is not executed.
read_settings() {
    run_dir=/run/gandiva
    default=off
    partitions=
    [ -r "$1" ] || return 0
    while IFS='=' read -r key value; do
        case $key in
        GANDIVA_RUN_DIR) run_dir=$value ;;
        GANDIVA_DEFAULT) default=$value ;;
        GANDIVA_PARTITIONS) partitions=$value ;;
        esac
    done <"$1"
}

# Mirrors the job_submit module: with GPUs, and asked for by a flag or by the site's default.
is_gandiva_job() {
    [ -n "${SLURM_JOB_GPUS:-}" ] || return 1
    [ -z "${SPANK__SLURM_SPANK_OPTION_gandiva_no_gandiva+set}" ] || return 1
    for option in gandiva weight gpus pack migrate suspend gpu_types model search; do
        [ "$option" = gandiva ] || option=gandiva_$option
        eval "[ -z \"\${SPANK__SLURM_SPANK_OPTION_gandiva_$option+set}\" ]" || return 0
    done
    [ "$default" = on ] || return 1
    [ -z "$partitions" ] && return 0
    case ",$partitions," in *",${SLURM_JOB_PARTITION:-},"*) return 0 ;; esac
    return 1
}

is_roots_folder() {
    [ -d "$1" ] && [ ! -h "$1" ] && [ -O "$1" ] && [ -z "$(find "$1" -maxdepth 0 -perm /022)" ]
}

make_folder() {
    mkdir -m "$2" -- "$1" 2>/dev/null || is_roots_folder "$1"
}

# What is mounted in a mount namespace of slurmd's own, the node agent would not see.
where_all_see_it() {
    theirs=$(readlink /proc/1/ns/mnt 2>/dev/null) || theirs=
    if [ -z "$theirs" ] || [ "$theirs" = "$(readlink /proc/self/ns/mnt)" ]; then
        timeout 20 "$@"
    else
        timeout 20 nsenter --mount=/proc/1/ns/mnt -- "$@"
    fi
}

# As controller/agent/rank_room.py does it: what the user may write is on a file system of its own.
mount_ranks() {
    options=mode=0700,uid=$uid,gid=$gid,size=8388608,nr_inodes=1024,nosuid,nodev,noexec
    where_all_see_it mount -i -n -t tmpfs -o "$options" gandiva "$1" || return 1
    [ "$(stat -c %d -- "$1")" = "$(stat -c %d -- "$block")" ] || return 0
    where_all_see_it umount -l -c -- "$1"
    return 1
}

job=${SLURM_JOB_ID:-}
case $job in '' | *[!0-9]*) exit 0 ;; esac
uid=${SLURM_JOB_UID:-}
gid=${SLURM_JOB_GID:-}
case $uid in '' | *[!0-9]*) exit 0 ;; esac
case $gid in '' | *[!0-9]*) gid=$(id -g "$uid" 2>/dev/null) || gid=0 ;; esac

here=${0%/*}
read_settings "$here/../gandiva/gandiva.env"
is_gandiva_job || exit 0

case $run_dir in
*%n*)
    node=${SLURMD_NODENAME:-}
    case $node in '' | *[!A-Za-z0-9._-]*) give_up "no usable node name for $run_dir" ;; esac
    run_dir=${run_dir%%%n*}$node${run_dir#*%n}
    ;;
esac
case $run_dir in /*) ;; *) give_up "$run_dir: expected an absolute path" ;; esac

mkdir -p -- "$run_dir" 2>/dev/null
is_roots_folder "$run_dir" || give_up "$run_dir: expected a folder that is root's alone"
block=$run_dir/$job
make_folder "$block" 0755 || give_up "$block: expected a folder that is root's alone"

if [ ! -e "$block/ranks" ] && [ ! -h "$block/ranks" ]; then
    # Root's until it is mounted: a session finds all of it or cannot get in.
    if mkdir -m 0700 -- "$block/ranks" 2>/dev/null && ! mount_ranks "$block/ranks"; then
        note "$block/ranks has no file system of its own: the job's user can fill the one of all jobs"
        chown -- "$uid:$gid" "$block/ranks"
    fi
    [ -d "$block/ranks" ] || give_up "$block/ranks: cannot make it"
fi

if [ ! -e "$block/command" ]; then
    # Magic, version 1, verb RUN, sequence 0, target 0: little-endian, 4,096 bytes.
    fresh=$block/.command.$$
    if printf 'GNDC\001\000\000\000' >"$fresh" && truncate -s 4096 -- "$fresh"; then
        # ln, not mv: the agent's file wins if it appeared meanwhile.
        ln -T -- "$fresh" "$block/command" 2>/dev/null
    fi
    rm -f -- "$fresh"
    [ -f "$block/command" ] || give_up "$block/command: cannot make it"
fi
exit 0
