#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Builds the packages of this release from the sources in /build/gandiva-slurm: results in /build/out.
set -euo pipefail
cd /build/gandiva-slurm
. /etc/os-release
[ ! -d /usr/lib/gandiva-build/third_party ] || cp -r /usr/lib/gandiva-build/third_party .
profiles=
[ ! -d third_party/pyslurm ] || profiles=--build-profiles=pkg.gandiva-slurm.pyslurm

# Each release has packages of its own, and an upgrade of Debian brings newer ones. Testing has no number yet.
release=${VERSION_ID:-14}
sed -i "1s/(\(.*\))/(\1~deb${release}u1)/" debian/changelog

export DEB_BUILD_OPTIONS="nocheck parallel=$(nproc)"
# dpkg-buildpackage takes SOURCE_DATE_EPOCH from the changelog; files that it has no time for get that too.
find . -newermt "@$(dpkg-parsechangelog -S Timestamp)" -exec touch -h -d "@$(dpkg-parsechangelog -S Timestamp)" {} +
echo "==> dpkg-buildpackage"
dpkg-buildpackage -us -uc -F -d $profiles 2>&1
echo "==> lintian"
mkdir -p /build/out
cd /build
lintian --no-cfg --allow-root --display-info --fail-on error gandiva-slurm_*.changes > out/lintian.txt 2>&1 ||
    { cat out/lintian.txt; echo "lintian has errors"; exit 1; }
cat out/lintian.txt
mv ./*.deb ./*.dsc ./*.tar.xz ./*.changes ./*.buildinfo out/
