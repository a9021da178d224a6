#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# environment.sh [demo]
#
# Makes .venv, the Python environment of the tests and of the mini cluster's harness, and installs the few
# Debian packages that are missing. `demo`: only what the demo needs. Does nothing when everything is there
# already. What apt-get and pip say is in build/logs/environment.log.
set -eu
cd "$(dirname "$0")/.."

venv=.venv
log=build/logs/environment.log
extras=agent,controller,cluster,dev
[ "${1:-}" != demo ] || extras=cluster
say() { printf '==> %s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }
quietly() {
    printf '$ %s\n' "$*" >>"$log"
    "$@" >>"$log" 2>&1 || { tail -n 15 "$log" >&2; fail "$1 failed; the whole of what it said is in $log"; }
}

# What the environment is made from; a change of any of these makes it anew.
wanted=$(cat pyproject.toml constraints.txt scripts/environment.sh | sha256sum | cut -c1-16)
made=$(cat "$venv/.made-from" 2>/dev/null || true)
[ "$made" != "$wanted" ] || exit 0
[ "$made" != "$wanted $extras" ] || exit 0
mkdir -p "$(dirname "$log")"
: >"$log"

missing=
command -v python3 >/dev/null || missing="$missing python3"
python3 -c 'import venv, ensurepip' 2>/dev/null || missing="$missing python3-venv"
if [ "$extras" != cluster ]; then
    command -v cc >/dev/null || missing="$missing gcc libc6-dev"
    command -v lua5.4 >/dev/null || missing="$missing lua5.4"
    # Without these two the tests of the SPANK plugin skip themselves; nothing else needs them.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        command -v make >/dev/null || missing="$missing make"
        [ -e /usr/include/slurm/spank.h ] || missing="$missing libslurm-dev"
    fi
fi
if [ -n "$missing" ]; then
    command -v apt-get >/dev/null || fail "these programs are missing, please install them:$missing"
    [ "$(id -u)" = 0 ] || fail "please install as root: apt-get install$missing"
    say "Installing from Debian:$missing"
    export DEBIAN_FRONTEND=noninteractive
    quietly apt-get update -q
    # shellcheck disable=SC2086  # a list of packages
    quietly apt-get install -y -q --no-install-recommends $missing
fi
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "Python 3.10 or newer is needed, this is $(python3 --version)"

say "Making the Python environment in $venv (once, up to a minute)"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
quietly "$venv/bin/pip" install --disable-pip-version-check -c constraints.txt -e ".[$extras]"
[ "$extras" != cluster ] || wanted="$wanted $extras"
printf '%s\n' "$wanted" >"$venv/.made-from"
