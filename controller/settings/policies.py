# SPDX-License-Identifier: GPL-2.0-or-later
"""The table [policy]: which policy plans, which moves follow it, and their sub-tables.

To add a policy add a line to `POLICIES`; where it has settings of its own, a table to `PolicySettings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Annotated, Any

from pydantic import AfterValidator, PrivateAttr, model_validator

from controller.policies import settings as presets
from controller.policies.allocations.settings import KEYS, unsuitable
from controller.policies.mechanisms.rounds.settings import TERMS, AllocationTable, RoundSettings
from controller.policies.site import ALLOWED, is_site_part
from controller.settings.base import Section, setting, table
from controller.settings.moved import Moved, take_moved


def _known(names: Callable[[], Iterable[str]]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in names() and not is_site_part(name):
            ours = ", ".join(f'"{one}"' for one in names())
            raise ValueError(f"must be one of {ours}, or {ALLOWED}" if ours else f"must be {ALLOWED}")
        return name

    return AfterValidator(check)


PolicyName = Annotated[str, _known(lambda: POLICIES)]
MoveName = Annotated[str, _known(lambda: presets.MOVE_NAMES)]
OwnPart = Annotated[str, _known(lambda: ())]
MaybeOwnPart = Annotated[str, _known(lambda: ("",))]


def _keys(section: type[Section], table: str) -> dict[str, str]:
    return dict.fromkeys(section.model_fields, table)


def _served(name: str) -> dict[str, str]:
    """The keys of an allocation in rounds."""
    own = dict.fromkeys((*KEYS[name], *TERMS.get(name, ())), "policy.allocation")
    return {**_keys(RoundSettings, "policy.rounds"), **own}


GAVEL = "Gavel's own ways are parts of a site now (benchmarks/fidelity/gavel.toml)"
_GAVELS = {"formulation": "exact", "rounds": "exact", "type_order": [], "type_seed": 0, "duration_type": ""}
_BACKFILL = {"backfill": "policy"}
_QUEUES = {**_BACKFILL, **_keys(presets.QueueSettings, "policy.tiresias")}
POLICIES: Mapping[str, Mapping[str, str]] = {
    "fifo": {},
    "gandiva": _keys(presets.GandivaSettings, "policy.gandiva"),
    "tiresias-las": _QUEUES,
    "tiresias-gittins": {**_QUEUES, **_keys(presets.TiresiasGittinsSettings, "policy.tiresias-gittins")},
    "fifo-skip": {},
    **dict.fromkeys(("sjf", "srtf", "srsf"), _BACKFILL),
    **{name: _served(name) for name in KEYS},
}
"""The policies that come with Gandiva: the keys that each reads, with their tables."""
MOVED: Mapping[str, Moved] = {
    **{
        f"policy.{move}.{key}": Moved(f"policy.trials.{key}")
        for move in ("pack", "separate", "grow")
        for key in presets.TrialSettings.model_fields
    },
    **{
        f"policy.{name}.{key}": Moved(f"{table}.{key}")
        for name, keys in POLICIES.items()
        for key, table in keys.items()
        if table != f"policy.{name}"
    },
    **{f"policy.{name}.{key}": Moved("", (said, GAVEL)) for name in KEYS for key, said in _GAVELS.items()},
    "policy.gavel-fifo.pack_gain_ratio": Moved("", (1.5, GAVEL)),
    "policy.gavel-fifo.seed": Moved("", (0, GAVEL)),
    "policy.fifo.skip": Moved("policy.name", (True, "fifo-skip")),
    "policy.tiresias-las.discretised": Moved("policy.tiresias.order", (False, "least-service")),
    "policy.tiresias-gittins.learn": Moved("policy.tiresias-gittins.samples_kept", (False, 0)),
}
"""Keys of earlier releases that are others now: deprecated, and read until the next release."""


class PolicySettings(Section):
    """The policy that decides which jobs run where."""

    name: PolicyName = setting(
        "gandiva",
        "The policy in use: the name of one that comes with Gandiva, or a site's own, such as "
        '"/etc/gandiva/mine.py:MyOrder" (docs/own-policies.md).',
    )
    moves: list[MoveName] = setting(
        [],
        "Moves that follow the policy's decision, in this order. pack: two jobs that both allow it "
        "(--gandiva-pack=yes) share GPUs while others wait, where that is faster than taking turns "
        "(docs/packing.md). defragment: jobs migrate so that one that waits finds its GPUs on one node "
        "(docs/migration.md). locality: gangs that are spread over nodes migrate to fewer when there is "
        "room. balance: jobs that take turns migrate to free GPUs. separate: jobs that have become slower "
        "beside others of their node migrate. grow: jobs that allow it (--gandiva-gpus) take GPUs that no "
        "job needs (docs/grow-shrink.md); not with allocation policies. A site's own are named as the "
        "policy is.",
        max_length=16,
    )
    parts: dict[str, OwnPart] = setting(
        {},
        'Names for a site\'s own policies and moves: short-first = "mine.py:ShortFirst". They come before '
        "Gandiva's own of the same name.",
        max_length=100,
    )
    own: dict[str, Any] = setting(
        {}, "Settings of a site's own parts in use, as their classes name them.", max_length=100
    )
    fair_share: bool = setting(
        False,
        "Users share GPUs by Slurm's shares, however many jobs they have. Where the policy has weights "
        "(gandiva, gavel-ftf, gavel-hierarchical, gavel-las, isolated), a user's jobs divide the user's "
        "share by their weights; gavel-hierarchical has it so in any case. Other policies take users in the "
        "order of Slurm's fair-share factor within a class.",
    )
    backfill: bool = setting(True, "Jobs may pass one that does not fit now. false: it blocks all behind it.")
    migration: presets.MigrationSettings = table()
    trials: presets.TrialSettings = table()
    defragment: presets.DefragmentSettings = table()
    locality: presets.LocalitySettings = table()
    separate: presets.SeparateSettings = table()
    grow: presets.GrowSettings = table()
    gandiva: presets.GandivaSettings = table()
    tiresias: presets.QueueSettings = table()
    tiresias_gittins: presets.TiresiasGittinsSettings = table()
    rounds: RoundSettings = table()
    allocation: AllocationTable = table()

    _deprecated: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="wrap")
    @classmethod
    def _moved(cls, values: Any, read: Callable[[Any], PolicySettings]) -> PolicySettings:
        """Tables are written with dashes, too. Deprecated keys are read as those that they are now."""
        if not isinstance(values, dict):
            return read(values)
        named = {key.replace("-", "_") if isinstance(key, str) else key: v for key, v in values.items()}
        if len(named) < len(values):
            twice = next(key for key in values if key not in named)
            raise ValueError(f'has the table "{twice}" twice, with dashes and with underscores')
        if isinstance(parts := named.get("parts"), dict):
            if isinstance(name := named.get("name"), str):
                named["name"] = parts.get(name, name)
            if isinstance(moves := named.get("moves"), list):
                named["moves"] = [parts.get(move, move) if isinstance(move, str) else move for move in moves]
        said = take_moved(named, MOVED, cls.model_fields)
        made = read(named)
        made._deprecated = tuple(said)
        return made

    @model_validator(mode="after")
    def _suits_the_allocation(self) -> PolicySettings:
        if wrong := unsuitable(self.name, self.allocation):
            raise ValueError(f"policy.allocation.{wrong} with {self.name}")
        return self

    @property
    def deprecated(self) -> tuple[str, ...]:
        """A sentence about each deprecated key that the file has."""
        return self._deprecated

    @property
    def in_use(self) -> dict[str, Any]:
        """What the policy in use reads, by whole key such as `policy.rounds.round_seconds`. A site's own
        reads nothing here."""
        keys = POLICIES.get(self.name, {}).items()
        paths = (f"{table}.{key}" for key, table in keys)
        return {path: attrgetter(path.replace("-", "_").removeprefix("policy."))(self) for path in paths}

    @property
    def reads_shares(self) -> bool:
        """Whether the policy looks at `Snapshot.shares`. Water filling is over Slurm's associations."""
        return self.fair_share or self.name == "gavel-hierarchical"

    @property
    def reads_rates(self) -> bool:
        """Whether the policy may decide by how fast jobs go where they are: orders alone do not."""
        return bool(self.moves) or self.name in KEYS or self.name not in POLICIES
