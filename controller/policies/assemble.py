# SPDX-License-Identifier: GPL-2.0-or-later
"""A policy from its settings: a preset or a site's own part, and the moves that follow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from controller.errors import SettingsError
from controller.policies.mechanisms.frame import Frame
from controller.policies.mechanisms.ordered import Ordered
from controller.policies.moves.balance import Balance
from controller.policies.moves.defragment import Defragment
from controller.policies.moves.grow import Grow
from controller.policies.moves.locality import Locality
from controller.policies.moves.move import Checked, Move
from controller.policies.moves.pack import Pack
from controller.policies.moves.separate import Separate
from controller.policies.orders.order import Order
from controller.policies.presets import PRESETS, WEIGHED, WEIGHED_BY_NODE, gangs, pairs_jobs
from controller.policies.protocol import Policy
from controller.policies.share_weights import DividedWeights
from controller.policies.shares import ByShares, InFactorOrder, Rule
from controller.policies.site import Guarded, Part, check_own, load_part

if TYPE_CHECKING:
    from controller.settings.policies import PolicySettings

MOVES: Mapping[str, Callable[[PolicySettings], Move]] = {
    "pack": lambda settings: Pack(settings.trials),
    "defragment": lambda settings: Defragment(settings.defragment, settings.migration),
    "locality": lambda settings: Locality(settings.locality, settings.migration),
    "balance": lambda settings: Balance(settings.migration),
    "separate": lambda settings: Separate(settings.separate, settings.trials, settings.migration),
    "grow": lambda settings: Grow(settings.grow, settings.trials),
}
"""Moves that come with Gandiva, by name."""


def make_policy(settings: PolicySettings, others: Sequence[Part] | None = ()) -> Policy:
    """The policy that the settings name, with what these name files for. Raises SettingsError. `others`: own
    parts in use that are none of the policy's; None: not known, so all keys of `policy.own` may be theirs."""
    parts: list[Part] = []
    moves = [_move(name, settings, parts) for name in settings.moves]
    preset = PRESETS.get(settings.name)
    policy = preset(settings, moves) if preset else _own_policy(settings, moves, parts)
    if others is not None:
        check_own(settings.own, [*parts, *others])
    if "grow" in settings.moves and not (isinstance(policy, Frame) and isinstance(policy.mechanism, Ordered)):
        raise SettingsError(
            f"policy.moves: {settings.name} computes shares for the sizes that jobs ask "
            "for, which grow changes"
        )
    if "pack" in settings.moves and pairs_jobs(settings):
        raise SettingsError(f"policy.moves: {settings.name} pairs jobs itself (space_sharing), without pack")
    if settings.reads_shares:
        policy = ByShares(policy, _rule(settings.name, policy))
    return Guarded(policy, [part.file for part in parts])


def _rule(name: str, policy: Policy) -> Rule:
    """How shares count for this policy: by the weights that it reads, or as an order of users. A site's own
    whole policy may read both weights and ranks."""
    if isinstance(policy, Frame) and name not in WEIGHED:
        return InFactorOrder()
    return DividedWeights(by_node=name in WEIGHED_BY_NODE)


def priority_class(settings: PolicySettings) -> Callable[[str], int]:
    """Priority class of a Slurm QOS under these settings; 0 where the policy knows no classes."""
    classes = settings.gandiva.priority_by_qos if settings.name == "gandiva" else {}
    return lambda qos: classes.get(qos, 0)


def _move(name: str, settings: PolicySettings, parts: list[Part]) -> Move:
    if name in MOVES:
        return MOVES[name](settings)
    part = load_part(name, settings.own)
    if not callable(getattr(part.made, "propose", None)):
        raise SettingsError(f"{name}: a move is a class with a method propose(snapshot, draft)")
    parts.append(part)
    return Checked(cast(Move, part.made), name)


def _own_policy(settings: PolicySettings, moves: list[Move], parts: list[Part]) -> Policy:
    """An order becomes gangs in that order; a class with `plan` is a whole policy."""
    name, part = settings.name, load_part(settings.name, settings.own)
    parts.append(part)
    if isinstance(part.made, Order):
        return gangs(part.made, moves)
    if not callable(getattr(part.made, "plan", None)):
        raise SettingsError(f"{name}: neither an Order nor a class with a method plan(snapshot, memory)")
    if moves:
        raise SettingsError(f"policy.moves: {name} is a whole policy, which moves cannot follow")
    return cast(Policy, part.made)
