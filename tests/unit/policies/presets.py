# SPDX-License-Identifier: GPL-2.0-or-later
"""The presets with settings for short tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controller.policies.assemble import make_policy
from controller.policies.mechanisms.frame import Frame
from controller.policies.mechanisms.rounds.policy import Rounds
from controller.policies.mechanisms.rounds.problem import Stated
from controller.policies.mechanisms.rounds.settings import RoundSettings
from controller.policies.moves.move import Move
from controller.policies.protocol import Policy
from controller.settings.policies import POLICIES as KNOWN
from controller.settings.policies import PolicySettings

LIMITS = [40.0, 150.0, 600.0]


def rounds(
    allocation: Stated, settings: RoundSettings, *, moves: Sequence[Move] = (), pairs: bool = False
) -> Policy:
    """An allocation in rounds as a policy."""
    return Frame(Rounds(allocation, settings, pairs=pairs), moves)


def preset(name: str, *moves: str, **settings: Any) -> Callable[[], Policy]:
    """Makes the policy of this name, with these of its own settings."""
    made = PolicySettings.model_validate({"moves": list(moves), **tables(name, settings)})
    return lambda: make_policy(made)


def tables(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The table [policy] with this policy and these of its own settings, each in its table."""
    found: dict[str, Any] = {"name": name}
    for key, value in settings.items():
        _, _, table = KNOWN[name][key].partition(".")
        (found.setdefault(table, {}) if table else found)[key] = value
    return found


def las(**settings: Any) -> Callable[[], Policy]:
    return preset("tiresias-las", **{"queue_limits": LIMITS, **settings})


POLICIES: dict[str, Callable[[], Policy]] = {
    "fifo": preset("fifo"),
    "fifo-skip": preset("fifo-skip"),
    "sjf": preset("sjf"),
    "srtf": preset("srtf"),
    "srsf": preset("srsf"),
    "las": las(promote_knob_ratio=2.0),
    "las by entry": las(order="queue-entry", promote_knob_ratio=0.0),
    "las late": las(order="queue-entry", demotion="at-events"),
    "las strict": las(backfill=False),
    "las undiscretised": las(order="least-service", interval_seconds=10.0),
    "rounds": preset("gavel-las", round_seconds=10.0, reset_seconds=40.0, change_types=True),
    "rounds at their ends": preset("gavel-las", round_seconds=10.0, refill=False),
    "gittins": preset("tiresias-gittins", queue_limits=LIMITS, interval_seconds=10.0, samples_needed=3),
}
"""All that make gangs."""
