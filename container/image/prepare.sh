#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# On the host ctl, once: the controller's key, and Slurm's configuration, made by the product's own command
# from /etc/minicluster/cluster.toml. Prints the public key.
set -euo pipefail
[ -e /etc/gandiva/agent_key ] || ssh-keygen -q -t ed25519 -N '' -C gandiva -f /etc/gandiva/agent_key
chown gandiva:gandiva /etc/gandiva/agent_key
run_dir=/run/gandiva
[ "${SHARED_HOSTS:-no}" = no ] || run_dir=/run/gandiva/%n
gandiva config slurm --cluster /etc/minicluster/cluster.toml --output-dir /etc/slurm --run-dir "$run_dir" \
    --force >&2
# Without systemd, slurmd makes its control groups itself.
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    printf 'CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\nEnableControllers=yes\n' >> /etc/slurm/cgroup.conf
fi
cp /etc/slurm/gandiva/job_submit.lua.example /etc/slurm/job_submit.lua
cat /etc/gandiva/agent_key.pub
