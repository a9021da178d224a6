#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# service.sh start|stop|running NAME [NODE...]      service.sh kill NAME SIGNAL [NODE...]
#
# The daemons of a mini cluster's host, without an init system. Names: munge, sshd, mariadb, slurmdbd,
# slurmctld, slurmd (one per NODE; default: all of this host), gandiva. Each is found by its pid file.
# `start` returns when the daemon answers; `stop` and a deadly `kill` when the process is gone, and a `kill` that
# stops it when all of its threads have stopped.
set -euo pipefail
. /etc/minicluster/host.env
action=$1
name=$2
shift 2
signal=KILL
if [ "$action" = kill ]; then
    signal=$1
    shift
fi
nodes=${*:-$HOST_NODES}
seconds=60

pid_file() {
    case $name in
    munge) echo /run/munge/munged.pid ;;
    sshd) echo /run/sshd.pid ;;
    mariadb) echo /run/mysqld/mysqld.pid ;;
    slurmd) echo "/run/slurm/slurmd.$1.pid" ;;
    *) echo "/run/slurm/$name.pid" ;;
    esac
}

# Whether this process has the word in its command line. In the middle of an exec it has none for a moment.
has_word() {
    local words i
    for ((i = 0; i < 100; i++)); do
        words=$({ tr '\0' ' ' < "/proc/$1/cmdline"; } 2> /dev/null) || return 1
        [ -n "$words" ] && break
        sleep 0.01
    done
    grep -q "$2" <<< "$words"
}

# The pid of the running daemon; fails where there is none (a pid file may be left over, its number reused).
daemon_pid() {
    local pid expected=$name
    case $name in
    munge) expected=munged ;;
    mariadb) expected=mariadbd ;;
    gandiva) expected=gandiva ;;
    esac
    pid=$(cat "$(pid_file "$@")" 2> /dev/null) && [ -n "$pid" ] && has_word "$pid" "$expected" && echo "$pid" && return
    # After `scontrol reconfigure` slurmd is another process, and its pid file lags behind.
    [ "$name" = slurmd ] && pgrep -o -f "^([^ ]*/)?slurmd -N $1\$"
}

launch() {
    case $name in
    munge) runuser -u munge -- munged ;;
    # Many nodes may share this host, and the controller connects to all of them at once.
    sshd) install -d -m 0755 /run/sshd && /usr/sbin/sshd -o MaxStartups=200 ;;
    mariadb)
        install -d -o mysql -g mysql /run/mysqld
        setsid mariadbd --user=mysql > /var/log/mariadb.log 2>&1 < /dev/null &
        ;;
    slurmdbd) slurmdbd ;;
    slurmctld)
        # Killed in the first minutes of its life it leaves jobs but no file of usage, and refuses to start.
        local state=/var/spool/slurmctld
        if [ -e $state/job_state ] && [ ! -e $state/assoc_usage ]; then slurmctld -i; else slurmctld; fi
        ;;
    slurmd)
        install -d "/var/spool/slurmd.$1"
        slurmd -N "$1"
        ;;
    gandiva)
        install -d -o gandiva -g gandiva /var/log/gandiva
        setsid setpriv --reuid=gandiva --regid=gandiva --init-groups env HOME=/var/lib/gandiva \
            /usr/bin/gandiva daemon -D >> /var/log/gandiva/controller.log 2>&1 < /dev/null &
        echo $! > "$(pid_file)"
        ;;
    *) echo "service.sh: no service $name" >&2 && exit 2 ;;
    esac
}

# Whether the daemon answers; where nothing can be asked, that it is there must do.
answers() {
    case $name in
    mariadb) mariadb -e 'select 1' ;;
    slurmdbd) timeout 5 sacctmgr -n show cluster ;;
    slurmctld) timeout 5 scontrol ping | grep -q 'is UP' ;;
    esac > /dev/null 2>&1
}

await() { # await started|gone|stopped what...
    local wanted=$1 i
    shift
    for ((i = 0; i < seconds * 50; i++)); do
        case $wanted in
        started) daemon_pid "$@" > /dev/null && answers && return ;;
        stopped) [ "$(sed 's/.*) //' "/proc/$1"/task/*/stat | cut -c1 | sort -u)" != T ] || return 0 ;;
        gone) [ -e "/proc/$1" ] && [ "$(cut -d' ' -f3 "/proc/$1/stat" 2> /dev/null)" != Z ] || return 0 ;;
        esac
        sleep 0.02
    done
    echo "service.sh: $name ${*:-} not $wanted after $seconds s" >&2
    exit 1
}

one() {
    local pid
    case $action in
    start)
        daemon_pid "$@" > /dev/null && return
        rm -f "$(pid_file "$@")"
        launch "$@"
        await started "$@"
        ;;
    stop | kill)
        pid=$(daemon_pid "$@") || return 0
        [ "$action" = kill ] || signal=TERM
        kill -s "$signal" "$pid"
        case $signal in
        TERM | KILL | 15 | 9) await gone "$pid" ;;
        STOP | 19) await stopped "$pid" ;;
        esac
        ;;
    running) daemon_pid "$@" > /dev/null || exit 1 ;;
    *) echo "service.sh: no action $action" >&2 && exit 2 ;;
    esac
}

if [ "$name" = slurmd ]; then
    for node in $nodes; do
        one "$node"
    done
else
    one
fi
