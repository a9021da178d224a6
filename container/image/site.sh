#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The layer of a site that installs the packages: Slurm and its company as in the base layer, but nothing of
# Gandiva's; what the packages depend on comes from Debian. Runs once, as root.
set -euo pipefail

if [ -n "${APT_OPTIONS:-}" ]; then
    printf '%s\n' "$APT_OPTIONS" > /build/apt.conf
    export APT_CONFIG=/build/apt.conf
fi
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -q -o Acquire::Check-Valid-Until=false -o Acquire::Retries=3 "$@"; }
apt update
apt install -y --no-install-recommends python3-pydantic python3-rich python3-numpy python3-scipy python3-highspy \
    python3-paramiko python3-prometheus-client slurm-client slurm-wlm-basic-plugins systemd logrotate bash-completion
rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb

# The mock GPUs are the machine's, not the product's.
make -s -C /build/mock_gpu all
make -s -C /build/mock_gpu install DESTDIR= PREFIX=/opt/mockgpu
ln -sf /opt/mockgpu/bin/mockgpu /usr/bin/mockgpu

# As on a machine that has never seen Gandiva, and with documentation, which packages have too.
userdel --remove gandiva 2> /dev/null || true
rm -rf /opt/gandiva /etc/gandiva /var/lib/gandiva /etc/dpkg/dpkg.cfg.d/minicluster /root/.cache
