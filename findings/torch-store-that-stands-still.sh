#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# The process with the TCPStore of a job is stopped for 10 s, and others ask the store with a timeout of 2 s.
#
# Guess: they get an error after 2 s. Each call that needs an answer waits until the process goes on, whatever the
# timeout: get() then raises, and check() and add() succeed as if nothing had been.

set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf -- "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q torch==2.13.0 numpy
"$here/venv/bin/python" - <<'PYTHON'
import datetime
import signal
import subprocess
import sys
import threading
import time
import torch

STOPPED_SECONDS = 10
SERVER = """
import sys, torch
store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""
print(f"torch {torch.__version__}")


def expect(words, guess, found, truth):
    print(f"{words:45} guess: {guess!s:12} found: {found}")
    if found != truth:
        sys.exit(f"this has changed: {truth} was expected")


server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
try:
    port = int(server.stdout.readline())
    for name, arguments, end in (
        ("get", ("missing",), "DistStoreError"),
        ("check", (["missing"],), "no error"),
        ("add", ("count", 1), "no error"),
    ):
        timeout = datetime.timedelta(seconds=2)
        store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timeout)
        server.send_signal(signal.SIGSTOP)
        threading.Timer(STOPPED_SECONDS, server.send_signal, (signal.SIGCONT,)).start()
        begin, found = time.monotonic(), "no error"
        try:
            getattr(store, name)(*arguments)
        except RuntimeError as error:
            found = type(error).__name__
        waited = time.monotonic() - begin >= STOPPED_SECONDS - 1
        expect(f"{name}() waits until the process goes on", False, waited, True)
        expect(f"{name}() ends with", "an error", found, end)
finally:
    server.kill()
    server.communicate()
PYTHON
