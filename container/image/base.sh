#!/bin/bash
# The slow layer: Slurm, MariaDB, munge, sshd, a compiler, and a virtual environment with pyslurm.
#
# Runs once, as root, in a container of a bare Debian. Inputs: /build/constraints.txt, and in the environment
# what this host's apt and pip need to reach their mirrors (all of it gone from the committed image).
set -euo pipefail

# The Release file of a testing snapshot may be older than it says it should be.
if [ -n "${APT_OPTIONS:-}" ]; then
    printf '%s\n' "$APT_OPTIONS" > /build/apt.conf
    export APT_CONFIG=/build/apt.conf
fi
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -q -o Acquire::Check-Valid-Until=false -o Acquire::Retries=3 "$@"; }

# Daemons are ours to start; and no manual pages, no documentation.
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
printf 'path-exclude=/usr/share/doc/*\npath-exclude=/usr/share/man/*\npath-exclude=/usr/share/locale/*\n' \
    > /etc/dpkg/dpkg.cfg.d/minicluster

# First, so that no package takes its number.
groupadd --system --gid 990 gandiva
useradd --system --uid 990 --gid 990 --home-dir /var/lib/gandiva --create-home --shell /bin/bash \
    --comment "Gandiva controller" gandiva

apt update
apt install -y --no-install-recommends \
    slurmctld slurmd slurmdbd slurm-client slurm-wlm-basic-plugins slurm-wlm-mysql-plugin \
    slurm-wlm-basic-plugins-dev libslurm-dev mariadb-server munge openssh-server openssh-client \
    gcc libc6-dev make pkgconf python3 python3-dev python3-venv \
    tini ca-certificates procps iproute2 util-linux less file gdb strace lua5.4
rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /usr/lib/debug

bash /build/database.sh > /build/database.log 2>&1 &
making_database=$!

python3 -m venv /opt/gandiva/venv
/opt/gandiva/venv/bin/pip install -q -c /build/constraints.txt \
    pydantic tomli paramiko nvidia-ml-py numpy scipy highspy clarabel rich prometheus-client \
    hypothesis pytest pytest-asyncio setuptools wheel cython submitit

# pyslurm is made for Slurm 25.11 and works with 26.05 when told so (see container/FACTS.md). Other releases
# have no pyslurm here: the controller uses its command adapter there.
slurm_release=$(slurmctld -V | sed -E 's/.* ([0-9]+\.[0-9]+)\..*/\1/')
if [ "$slurm_release" = 26.05 ] || [ "$slurm_release" = 25.11 ]; then
    mkdir -p /build/include
    cp -r /usr/include/slurm /build/include/
    sed -i 's/^#define SLURM_VERSION_NUMBER .*/#define SLURM_VERSION_NUMBER 0x190b02/' \
        /build/include/slurm/slurm_version.h
    cd /build
    /opt/gandiva/venv/bin/pip download -q --no-deps --no-build-isolation --no-binary pyslurm \
        -c /build/constraints.txt pyslurm
    tar xzf pyslurm-*.tar.gz
    cd pyslurm-*/
    flags="-O1 -g0 -w"
    if [ "$slurm_release" = 26.05 ]; then
        flags+=" -DSLURM_BACKWARD_COMPAT -Dslurm_free_ctl_conf=slurm_free_conf"
        flags+=" -DESLURM_ERROR_ON_DESC_TO_RECORD_COPY=2063"
    fi
    CFLAGS="$flags" SLURM_INCLUDE_DIR=/build/include SLURM_LIB_DIR="/usr/lib/$(gcc -print-multiarch)" \
        PYSLURM_BUILD_JOBS="$(nproc)" \
        /opt/gandiva/venv/bin/python setup.py build_ext --parallel "$(nproc)" bdist_wheel -d /build/wheels \
        > /build/pyslurm.log 2>&1 || { tail -50 /build/pyslurm.log; exit 1; }
    /opt/gandiva/venv/bin/pip install -q --no-deps /build/wheels/pyslurm-*.whl
    # Importing it asks Slurm for a configuration; the smallest will do.
    printf 'ClusterName=build\nSlurmctldHost=localhost\nNodeName=build\n' > /build/slurm.conf
    (cd / && SLURM_CONF=/build/slurm.conf /opt/gandiva/venv/bin/python -c 'import pyslurm')
    cd /
fi

wait "$making_database" || { cat /build/database.log; exit 1; }

# Keys and host names are each cluster's own.
rm -rf /etc/slurm/* /etc/munge/munge.key /etc/ssh/ssh_host_* /var/log/munge/* /var/log/slurm/* \
    /root/.cache
install -d -m 0755 /run/sshd /etc/gandiva /shared
