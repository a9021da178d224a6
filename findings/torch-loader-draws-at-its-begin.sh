#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# A DataLoader that does not shuffle and has no workers is begun.
#
# Guess: nothing is random there, so nothing is drawn. It takes a seed from the generator of the whole process, as
# dropout does; with a generator of its own it does not. So a job that goes on within an epoch has other random numbers
# than an undisturbed one, although its generator was restored.

set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf -- "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q torch==2.13.0 numpy
"$here/venv/bin/python" - <<'PYTHON'
import sys
import torch

print(f"torch {torch.__version__}")


def expect(words, guess, found, truth):
    print(f"{words:45} guess: {guess!s:6} found: {found}")
    if found != truth:
        sys.exit(f"this has changed: {truth} was expected")


def draws(**options):
    loader = torch.utils.data.DataLoader(list(range(8)), batch_size=2, **options)
    before = torch.get_rng_state()
    iter(loader)
    return not torch.equal(before, torch.get_rng_state())


expect("draws: no shuffle, no workers", False, draws(), True)
expect("draws: with a generator of its own", False, draws(generator=torch.Generator()), False)
PYTHON
