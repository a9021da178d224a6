# SPDX-License-Identifier: GPL-2.0-or-later
"""The table [policy]: which policy plans, which moves follow it, and one sub-table per preset and move.

To add a preset's settings add one line to `PolicySettings`: the field's name is the preset's name (with
underscores for dashes), its type the preset's own model.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Annotated, Any

from pydantic import AfterValidator, model_validator

from controller.policies import settings as presets
from controller.policies.mechanisms.rounds import settings as rounds
from controller.policies.site import ALLOWED, is_site_part
from controller.settings.base import Section, setting, table


def _known(names: Callable[[], Iterable[str]]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in names() and not is_site_part(name):
            ours = ", ".join(f'"{one}"' for one in names())
            raise ValueError(f"must be one of {ours}, or {ALLOWED}" if ours else f"must be {ALLOWED}")
        return name

    return AfterValidator(check)


PolicyName = Annotated[str, _known(lambda: policy_names())]
MoveName = Annotated[str, _known(lambda: presets.MOVE_NAMES)]
OwnPart = Annotated[str, _known(lambda: ())]
MaybeOwnPart = Annotated[str, _known(lambda: ("",))]


_OF_ALL = ("name", "moves", "parts", "own", "fair_share", "migration")
"""Keys that are no preset's table."""


class PolicySettings(Section):
    """The policy that decides which jobs run where."""

    name: PolicyName = setting(
        "gandiva",
        "The policy in use: the name of one of the sub-tables, or a site's own, such as "
        '"/etc/gandiva/mine.py:MyOrder" (docs/own-policies.md).',
    )
    moves: list[MoveName] = setting(
        [],
        "Moves that follow the policy's decision, in this order. pack: two jobs that both allow it "
        "(--gandiva-pack=yes) share GPUs while others wait, where that is faster than taking turns "
        "(docs/packing.md). defragment: jobs migrate so that one that waits finds its GPUs on one server "
        "(docs/migration.md). locality: gangs that are spread over servers migrate to fewer when there is "
        "room. balance: jobs that take turns migrate to free GPUs. separate: jobs that have become slower "
        "beside others of their server migrate. grow: jobs that allow it (--gandiva-gpus) take GPUs that no "
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
    pack: presets.PackSettings = table()
    migration: presets.MigrationSettings = table()
    defragment: presets.DefragmentSettings = table()
    locality: presets.LocalitySettings = table()
    separate: presets.SeparateSettings = table()
    grow: presets.GrowSettings = table()
    fifo: presets.FifoSettings = table()
    gandiva: presets.GandivaSettings = table()
    tiresias_las: presets.TiresiasLasSettings = table()
    tiresias_gittins: presets.TiresiasGittinsSettings = table()
    fifo_skip: presets.FifoSkipSettings = table()
    sjf: presets.SjfSettings = table()
    srtf: presets.SrtfSettings = table()
    srsf: presets.SrsfSettings = table()
    allox: rounds.AlloxSettings = table()
    gavel_cost: rounds.GavelCostSettings = table()
    gavel_cost_slo: rounds.GavelCostSloSettings = table()
    gavel_fifo: rounds.GavelFifoSettings = table()
    gavel_ftf: rounds.GavelFtfSettings = table()
    gavel_gandiva: rounds.GavelGandivaSettings = table()
    gavel_hierarchical: rounds.GavelHierarchicalSettings = table()
    gavel_las: rounds.GavelLasSettings = table()
    gavel_makespan: rounds.GavelMakespanSettings = table()
    gavel_max_throughput: rounds.GavelMaxThroughputSettings = table()
    gavel_sjf: rounds.GavelSjfSettings = table()
    gavel_strategy_proof: rounds.GavelStrategyProofSettings = table()
    isolated: rounds.IsolatedSettings = table()
    proportional: rounds.ProportionalSettings = table()

    @model_validator(mode="before")
    @classmethod
    def _dashes(cls, values: Any) -> Any:
        """`[policy.tiresias-las]` is the table of the preset of that name, too."""
        if not isinstance(values, dict):
            return values
        named = {key.replace("-", "_") if isinstance(key, str) else key: v for key, v in values.items()}
        if len(named) < len(values):
            twice = next(key for key in values if key not in named)
            raise ValueError(f'has the table "{twice}" twice, with dashes and with underscores')
        if isinstance(parts := named.get("parts"), dict):
            moves = named.get("moves")
            named |= {"name": parts.get(name, name)} if isinstance(name := named.get("name"), str) else {}
            named |= {"moves": [parts.get(m, m) for m in moves]} if isinstance(moves, list) else {}
        return named

    @property
    def reads_shares(self) -> bool:
        """Whether the policy looks at `Snapshot.shares`. Water filling is over Slurm's associations."""
        return self.fair_share or self.name == "gavel-hierarchical"

    @property
    def reads_rates(self) -> bool:
        """Whether the policy may decide by how fast jobs go where they are: orders alone do not."""
        return bool(self.moves) or self.chosen is None or isinstance(self.chosen, rounds.RoundSettings)

    @property
    def chosen(self) -> Section | None:
        """The settings of the preset in use. None: a site's own policy, which has none here."""
        if self.name not in policy_names():
            return None
        section = getattr(self, self.name.replace("-", "_"))
        assert isinstance(section, Section)
        return section


@cache
def policy_names() -> tuple[str, ...]:
    others = {*_OF_ALL, *presets.MOVE_NAMES}
    return tuple(name.replace("_", "-") for name in PolicySettings.model_fields if name not in others)
