#!/bin/bash
# The accounting's database with slurmdbd's tables: base.sh has it made beside the rest, so that a cluster
# starts with it ready (at its first start slurmdbd takes seconds for them).
set -euo pipefail

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
