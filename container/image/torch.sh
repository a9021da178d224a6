#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The layer that the tests of the job side run in: the base layer and Debian's PyTorch, which is built for the CPU.
# Runs once, as root.
set -euo pipefail

if [ -n "${APT_OPTIONS:-}" ]; then
    printf '%s\n' "$APT_OPTIONS" > /build/apt.conf
    export APT_CONFIG=/build/apt.conf
fi
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -q -o Acquire::Check-Valid-Until=false -o Acquire::Retries=3 "$@"; }
apt update
apt install -y --no-install-recommends python3-torch python3-pytest-xdist
rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb

# The environment of the base layer has pytest and what the node agent imports. Let it see Debian's modules too.
sed -i 's/^include-system-site-packages = false$/include-system-site-packages = true/' /opt/gandiva/venv/pyvenv.cfg
/opt/gandiva/venv/bin/python -c 'import torch, torch.distributed; assert torch.distributed.is_gloo_available()'
