#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# A tensor that PyTorch conjugates or negates lazily, as x.conj() is, is saved with safetensors.
#
# Guess: an error, or what the tensor stands for. It is saved as x, silently; torch.save() and torch's own distributed
# checkpoints keep it. PyTorch notes the conjugation in the tensor, beside memory that it shares with x.

set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf -- "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q torch==2.13.0 safetensors==0.8.0 numpy
"$here/venv/bin/python" - "$here" <<'PYTHON'
import sys
import safetensors
import safetensors.torch
import torch

folder = sys.argv[1]
print(f"torch {torch.__version__}, safetensors {safetensors.__version__}")


def expect(words, guess, found, truth):
    print(f"{words:45} guess: {guess!s:12} found: {found}")
    if found != truth:
        sys.exit(f"this has changed: {truth} was expected")


x = torch.tensor([1 + 2j])
for words, tensor, guess, truth in (
    ("x.conj() of 1+2j", x.conj(), 1 - 2j, 1 + 2j),
    ("x.conj().imag", x.conj().imag, -2.0, 2.0),
    ("-1, as a view that is negated", torch._neg_view(torch.ones(1)), -1.0, 1.0),
):
    safetensors.torch.save_file({"w": tensor.contiguous()}, f"{folder}/w")
    expect(f"{words}, by safetensors", guess, safetensors.torch.load_file(f"{folder}/w")["w"].item(), truth)
    torch.save(tensor, f"{folder}/w")
    expect(f"{words}, by torch.save", guess, torch.load(f"{folder}/w").item(), tensor.item())
PYTHON
