# SPDX-License-Identifier: GPL-2.0-or-later
"""Users choose the names of models: what is learned of models stays bounded."""

from controller.model import Profile
from controller.observe.measured import Measured
from controller.observe.rates import MAX_MODELS


def test_of_many_models_those_learned_of_last_are_kept() -> None:
    measured = Measured({}, {}, {}, {})
    for number in range(MAX_MODELS):
        measured._learn(f"m{number}", Profile(peak_memory_bytes=1))
    measured._learn("m0", Profile(peak_memory_bytes=2))
    measured._learn("new", Profile(peak_memory_bytes=1))
    assert len(measured.models) == MAX_MODELS
    assert "m1" not in measured.models
    assert measured.models["m0"].peak_memory_bytes == 2
    assert list(measured.models)[-1] == "new"
