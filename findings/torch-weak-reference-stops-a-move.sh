#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Something (a cache, a debugger, a memory tracker) keeps a weak reference to a model's parameters. The model is cast.
#
# Guess: weak references change nothing. For an ordinary model that is so. For one of fully_shard() every cast and
# every move fails: its parameters are DTensors, which are swapped, and a tensor with a weak reference is not swapped.
# The model is then left half cast.

set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf -- "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q torch==2.13.0 numpy
"$here/venv/bin/python" - <<'PYTHON'
import sys
import weakref
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

print(f"torch {torch.__version__}")
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)


def cast(sharded, noted):
    """What casting a model says, and the types of its parameters after that."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    if sharded:
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    parameters = list(model.parameters())
    kept = [weakref.ref(parameter) for parameter in parameters[-1:] if noted]
    del parameters
    try:
        model.double()
        said = "done"
    except RuntimeError as error:
        said = "refused"
        print(f"  {str(error).splitlines()[0]}; {error.__cause__ or ''}".rstrip("; "))
    types = sorted({str(parameter.dtype) for parameter in model.parameters()})
    return said, *types


def expect(words, guess, found, truth):
    print(f"{words:35} guess: {guess}\n{'':35} found: {found}")
    if found != truth:
        sys.exit(f"this has changed: {truth} was expected")


DONE = ("done", "torch.float64")
expect("ordinary, with a weak reference", DONE, cast(False, True), DONE)
expect("fully_shard(), without", DONE, cast(True, False), DONE)
expect("fully_shard(), with", DONE, cast(True, True), ("refused", "torch.float32", "torch.float64"))
torch.distributed.destroy_process_group()
PYTHON
