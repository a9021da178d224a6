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

# The database of the accounting: made here, so that a cluster starts with it ready.
cat > /etc/mysql/mariadb.conf.d/90-minicluster.cnf <<'EOF'
[mariadbd]
# Its default differs between Debian's releases.
datadir = /var/lib/minicluster-db
skip-networking
innodb_buffer_pool_size = 64M
innodb_log_file_size = 8M
innodb_flush_log_at_trx_commit = 0
innodb_doublewrite = 0
innodb_lock_wait_timeout = 900
performance_schema = off
EOF
rm -rf /var/lib/mysql /var/lib/mariadb
mariadb-install-db --user=mysql --datadir=/var/lib/minicluster-db --skip-test-db > /dev/null
install -d -o mysql -g mysql /run/mysqld
mariadbd --user=mysql > /build/mariadb.log 2>&1 &
database=$!
for _ in $(seq 100); do mariadb -e 'select 1' > /dev/null 2>&1 && break; sleep 0.1; done
mariadb <<'EOF'
create database slurm_acct_db;
create user 'slurm'@'localhost' identified via unix_socket;
grant all on slurm_acct_db.* to 'slurm'@'localhost';
EOF

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

# slurmdbd makes its tables at its first start, which takes seconds: do it here.
install -d -o slurm -g slurm /var/lib/slurm /var/log/slurm /var/spool/slurmctld /run/slurm
install -d -m 0755 -o munge -g munge /run/munge
runuser -u munge -- munged
cat > /etc/slurm/slurmdbd.conf <<'EOF'
AuthType=auth/munge
DbdHost=localhost
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
PidFile=/run/slurm/slurmdbd.pid
EOF
chown slurm /etc/slurm/slurmdbd.conf
chmod 600 /etc/slurm/slurmdbd.conf
slurmdbd -D -v > /build/slurmdbd.log 2>&1 &
accounting=$!
for _ in $(seq 300); do
    grep -q 'slurmdbd version .* started' /build/slurmdbd.log && break
    sleep 0.1
done
grep -q 'slurmdbd version .* started' /build/slurmdbd.log || { cat /build/slurmdbd.log; exit 1; }
kill "$accounting"
wait "$accounting" || true
mariadb-admin shutdown
wait "$database" || true
pkill munged || true

# Keys and host names are each cluster's own.
rm -rf /etc/slurm/* /etc/munge/munge.key /etc/ssh/ssh_host_* /var/log/munge/* /var/log/slurm/* \
    /root/.cache
install -d -m 0755 /run/sshd /etc/gandiva /shared
