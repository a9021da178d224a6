# SPDX-License-Identifier: GPL-2.0-or-later
"""Which of our policies is which of other people's simulators."""

from __future__ import annotations

TIRESIAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fifo": ("fifo", ()),
    "fjf": ("fifo-skip", ()),
    "sjf": ("sjf", ()),
    "shortest": ("srtf", ()),
    "shortest-gpu": ("srsf", ()),
    "dlas": ("tiresias-las", ("service=seconds",)),
    "dlas-gpu": ("tiresias-las", ()),
    "dlas-gpu-gittins": ("tiresias-gittins", ()),
    "dlas-gpu-8": ("tiresias-las", ("promote_knob_ratio=8", "promote_waiting=since-promotion")),
}
"""The schedule of Tiresias' simulator: our policy and its settings, beside those of `tiresias.toml`."""

BLOX = {"Fifo": "fifo", "Srtf": "srtf", "Las": "tiresias-las"}
"""The policy of Blox: ours, with `blox.toml`."""
