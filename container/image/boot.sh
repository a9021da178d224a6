#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# First process of a host of the mini cluster (below tini): makes the host ready, starts what needs no Slurm
# configuration, then only waits. Everything else is started by the harness through service.sh.
#
# /etc/minicluster/host.env gives HOST_ROLE (login, ctl, db, node), HOST_NODES, HOST_GPUS and MOCKGPU_INIT.
set -euo pipefail
. /etc/minicluster/host.env
service=/usr/lib/gandiva-minicluster/service.sh

# The container has its own view of the control groups, writable for slurmd once remounted: nothing it makes
# there is seen by, or outlives, the container.
cgroups() {
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        mount -o remount,rw /sys/fs/cgroup
        mkdir -p /sys/fs/cgroup/init
        # A group with controllers for its children may have no processes of its own (version 2).
        xargs -rn1 < /sys/fs/cgroup/cgroup.procs > /sys/fs/cgroup/init/cgroup.procs || true
        sed -e 's/ / +/g' -e 's/^/+/' < /sys/fs/cgroup/cgroup.controllers > /sys/fs/cgroup/cgroup.subtree_control
    else
        for folder in /sys/fs/cgroup/*/; do
            mount -o remount,bind,rw,nosuid,nodev,noexec "$folder" 2> /dev/null || true
        done
    fi
}

accounts() {
    for file in passwd group shadow; do
        cat "/etc/minicluster/$file" >> "/etc/$file"
        rm "/etc/minicluster/$file"
    done
    rmdir /home 2> /dev/null && ln -s /shared/home /home
}

gpus() {
    local index
    for ((index = 0; index < HOST_GPUS; index++)); do
        mknod -m 666 "/dev/nvidia$index" c 195 "$index"
    done
    mknod -m 666 /dev/nvidiactl c 195 255
    if [ -d /opt/mockgpu/lib ]; then
        echo /opt/mockgpu/lib > /etc/ld.so.conf.d/mockgpu.conf
        ldconfig
        # Several nodes on one host: a folder each, which SLURMD_NODENAME tells.
        local node folder=/var/lib/mockgpu
        for node in $HOST_NODES; do
            [ "$HOST_NODES" = "$node" ] || folder=/var/lib/mockgpu/$node
            install -d "$folder"
            MOCKGPU_DIR=$folder /opt/mockgpu/bin/mockgpu init --node "$node" "${MOCKGPU_INIT[@]}"
        done
    fi
}

[ -e /etc/minicluster/passwd ] && accounts
install -d -o slurm -g slurm /run/slurm /var/log/slurm /var/spool/slurmctld
install -d -m 0755 -o munge -g munge /run/munge /var/log/munge /var/lib/munge
chown munge:munge /etc/munge/munge.key
"$service" start munge
case $HOST_ROLE in
node)
    cgroups
    [ -e /dev/nvidiactl ] || gpus
    [ -e /etc/ssh/ssh_host_ed25519_key ] || ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
    "$service" start sshd
    ;;
db)
    "$service" start mariadb
    ;;
login)
    install -d -m 0755 /shared/home
    install -d -m 1777 /shared/tmp
    while IFS=: read -r user _ uid gid _ home _; do
        case $home in
        /home/*) [ -d "/shared$home" ] || { cp -r /etc/skel "/shared$home"; chown -R "$uid:$gid" "/shared$home"; } ;;
        esac
    done < /etc/passwd
    ;;
esac
touch /run/minicluster-ready
exec sleep infinity
