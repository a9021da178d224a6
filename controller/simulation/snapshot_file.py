# SPDX-License-Identifier: GPL-2.0-or-later
"""A decision in a file: what was seen, what the policy remembered, and what it decided. `gandiva replay`
makes it again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from controller.errors import GandivaError
from controller.model import Configuration, Memory, Plan, Rate, Snapshot, value
from controller.policies.site import is_site_part
from controller.settings.base import first_wrong, key_twice, read_file
from controller.settings.policies import PolicySettings

if TYPE_CHECKING:
    from controller.loop.loop import Cycle

MAX_FILE_BYTES = 1 << 28

_SNAPSHOT, _PLAN, _MEMORY = TypeAdapter(Snapshot), TypeAdapter(Plan), TypeAdapter(Memory)
_RATES = TypeAdapter(dict[str, list[tuple[Configuration, Rate]]])


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    gandiva_snapshot: Literal[2]
    policy: dict[str, Any]
    """The table [policy] of the settings, without the tables of other policies and moves."""
    snapshot: dict[str, Any]
    memory: dict[str, Any]
    plan: dict[str, Any]


@value
class RecordedDecision:
    """The content of a file."""

    policy: PolicySettings
    snapshot: Snapshot
    memory: Memory
    """What the policy remembered before it decided."""
    plan: Plan


def dump_decision(decision: RecordedDecision) -> bytes:
    policy = decision.policy
    used = {key.split(".")[1].replace("-", "_") for key in policy.in_use} | {*policy.moves}
    used |= {"trials", "migration"} if policy.moves else set()
    used |= {"own"} if any(map(is_site_part, (policy.name, *policy.moves))) else set()
    table = policy.model_dump(mode="json", include={"name", "moves", "fair_share", *used})
    # JSON has no keys but strings.
    rates = {
        model: [as_json(pair) for pair in known.items()] for model, known in decision.snapshot.rates.items()
    }
    content = {
        "gandiva_snapshot": 2,
        "policy": table,
        "snapshot": {**as_json(replace(decision.snapshot, rates={})), "rates": rates},
        "memory": as_json(decision.memory),
        "plan": as_json(decision.plan),
    }
    return json.dumps(content).encode()


def as_json(thing: Any) -> Any:
    """A value of the model as JSON."""
    if is_dataclass(thing):
        return {field.name: as_json(getattr(thing, field.name)) for field in fields(thing) if field.init}
    if isinstance(thing, Mapping):
        return {key: as_json(item) for key, item in thing.items()}
    if isinstance(thing, Set):
        return [as_json(item) for item in sorted(thing)]
    if isinstance(thing, list | tuple):
        return [as_json(item) for item in thing]
    return thing


def read_decision(path: Path) -> RecordedDecision:
    """Raises GandivaError: the file cannot be read, or is not a recorded decision."""
    raw = read_file(path, MAX_FILE_BYTES, GandivaError)
    try:
        if again := key_twice(raw):
            raise GandivaError(f"{path}: not a recorded decision: {again}")
        file = _File.model_validate(json.loads(raw))
        return RecordedDecision(
            PolicySettings.model_validate(file.policy, strict=False),
            _snapshot(file.snapshot),
            _MEMORY.validate_python(file.memory),
            _PLAN.validate_python(file.plan),
        )
    except ValidationError as error:
        raise GandivaError(f"{path}: not a recorded decision: {first_wrong(error)}") from None
    except (ValueError, RecursionError) as error:
        raise GandivaError(f"{path}: not a recorded decision: not JSON: {error}") from None


def _snapshot(content: Mapping[str, Any]) -> Snapshot:
    snapshot = _SNAPSHOT.validate_python({key: item for key, item in content.items() if key != "rates"})
    rates = _RATES.validate_python(content.get("rates", {}))
    return replace(snapshot, rates={model: dict(known) for model, known in rates.items()})


@dataclass
class SnapshotWriter:
    """Writes a decision every so many seconds of the loop's time."""

    folder: Path
    policy: PolicySettings
    every_seconds: float
    _next: float = -math.inf

    def see(self, cycle: Cycle) -> None:
        """To be called with every decision."""
        time = cycle.snapshot.time
        if time < self._next:
            return
        self._next = time + self.every_seconds
        decision = RecordedDecision(self.policy, cycle.snapshot, cycle.memory, cycle.plan)
        path = self.folder / f"{time:.0f}.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(dump_decision(decision))
        except OSError as error:
            raise GandivaError(f"cannot write {path}: {error.strerror}") from error
