#!/bin/bash
# The layer that packages are built and checked in: the base layer (Slurm's headers, a compiler), debhelper,
# lintian, systemd's tools, and what packages bring along because Debian has it not: pynvml, and pyslurm where
# one works with this Slurm. Runs once, as root; /build/constraints.txt has the versions.
set -euo pipefail
third_party=/usr/lib/gandiva-build/third_party

if [ -n "${APT_OPTIONS:-}" ]; then
    printf '%s\n' "$APT_OPTIONS" > /build/apt.conf
    export APT_CONFIG=/build/apt.conf
fi
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -q -o Acquire::Check-Valid-Until=false -o Acquire::Retries=3 "$@"; }
apt update
apt install -y --no-install-recommends dpkg-dev fakeroot debhelper dh-python lintian python3-pydantic \
    python3-shtab systemd logrotate fish zsh bash-completion
rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb

pip() { /opt/gandiva/venv/bin/pip "$@"; }
mkdir -p "$third_party/pynvml" /build/download
pip download -q --no-deps -c /build/constraints.txt -d /build/download nvidia-ml-py
python3 -m zipfile -e /build/download/nvidia_ml_py-*.whl /build/nvidia
cp /build/nvidia/pynvml.py "$third_party/pynvml/"

# As in base.sh, but with Debian's hardening: this one is for other people's machines.
slurm_release=$(slurmctld -V | sed -E 's/.* ([0-9]+\.[0-9]+)\..*/\1/')
if [ "$slurm_release" = 26.05 ] || [ "$slurm_release" = 25.11 ]; then
    mkdir -p /build/include
    cp -r /usr/include/slurm /build/include/
    sed -i 's/^#define SLURM_VERSION_NUMBER .*/#define SLURM_VERSION_NUMBER 0x190b02/' \
        /build/include/slurm/slurm_version.h
    cd /build
    pip download -q --no-deps --no-build-isolation --no-binary pyslurm -c /build/constraints.txt pyslurm
    tar xzf pyslurm-*.tar.gz
    cd pyslurm-*/
    flags="$(DEB_BUILD_MAINT_OPTIONS=hardening=+all dpkg-buildflags --get CFLAGS)"
    flags+=" $(DEB_BUILD_MAINT_OPTIONS=hardening=+all dpkg-buildflags --get CPPFLAGS) -O1 -g0 -w"
    if [ "$slurm_release" = 26.05 ]; then
        flags+=" -DSLURM_BACKWARD_COMPAT -Dslurm_free_ctl_conf=slurm_free_conf"
        flags+=" -DESLURM_ERROR_ON_DESC_TO_RECORD_COPY=2063"
    fi
    CFLAGS="$flags" LDFLAGS="$(DEB_BUILD_MAINT_OPTIONS=hardening=+all dpkg-buildflags --get LDFLAGS) -Wl,--strip-debug" \
        SLURM_INCLUDE_DIR=/build/include SLURM_LIB_DIR="/usr/lib/$(gcc -print-multiarch)" \
        PYSLURM_BUILD_JOBS="$(nproc)" \
        /opt/gandiva/venv/bin/python setup.py build_ext --parallel "$(nproc)" bdist_wheel -d /build/wheels \
        > /build/pyslurm.log 2>&1 || { tail -50 /build/pyslurm.log; exit 1; }
    python3 -m zipfile -e /build/wheels/pyslurm-*.whl /build/pyslurm-files
    mkdir -p "$third_party/pyslurm"
    cp -r /build/pyslurm-files/pyslurm "$third_party/pyslurm/"
    # What only other extensions need to be built is not for use.
    find "$third_party/pyslurm" \( -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.c' \) -delete
fi
