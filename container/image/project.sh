#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The quick layer: builds and installs this project from /opt/gandiva/src. Runs as root; again at each change
# of the sources, in an image under construction or (`gandiva-cluster sync`) in a running container.
set -euo pipefail
source=/opt/gandiva/src
cd "$source"

# A part that is not there is left out (an early checkout); a part that is there must build.
build() {
    local folder=$1
    shift
    [ -f "$folder/Makefile" ] || return 0
    echo "building $folder"
    make -s -C "$folder" all "$@"
    # (The hosts of a cluster share this folder, and all of them install into it at once.)
    flock /etc/slurm make -s -C "$folder" install "$@"
}
build container/mock_gpu DESTDIR= PREFIX=/opt/mockgpu
[ ! -e /opt/mockgpu/bin/mockgpu ] || ln -sf /opt/mockgpu/bin/mockgpu /usr/bin/mockgpu
build slurm_plugin DESTDIR= PREFIX=/usr

# Jobs see this folder on PYTHONPATH: it must hold these two packages and nothing else.
if [ -d gandiva ]; then
    rm -rf /opt/gandiva/jobside
    install -d /opt/gandiva/jobside
    cp -r gandiva checkpointing /opt/gandiva/jobside/
fi

# Editable: a new copy of the sources is a new version of the program, without another installation.
if [ -f pyproject.toml ] && [ ! -e /opt/gandiva/venv/bin/gandiva ]; then
    [ -f README.md ] || echo "Gandiva for Slurm" > README.md
    /opt/gandiva/venv/bin/pip install -q --no-deps --no-build-isolation -e .
    for name in gandiva gandiva-agent; do
        ln -sf "/opt/gandiva/venv/bin/$name" "/usr/bin/$name"
    done
fi
