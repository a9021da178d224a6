# SPDX-License-Identifier: GPL-2.0-or-later
"""Why a job is where it is: one of a few kinds of reasons, beside the sentence that people read."""

from __future__ import annotations

import enum


class Reason(str, enum.Enum):
    """Kinds of reasons. The values never change: the API, metrics and the journal have them. docs/reports.md
    says what each means, and what to do."""

    WAITS_FOR_GPUS = "waits-for-gpus"
    WAITS_FOR_TURN = "waits-for-turn"
    NO_NODE_FITS = "no-node-fits"
    NODE_DRAINS = "node-drains"
    NOT_ELIGIBLE = "not-eligible"
    HELD = "held"
    AT_LIMIT = "at-limit"
    OPERATION_FAILED = "operation-failed"
    ITS_TURN = "its-turn"
    TURN_OVER = "turn-over"
    PREEMPTED = "preempted"
    KEEPS_GPUS = "keeps-gpus"
    SHARES_GPUS = "shares-gpus"
    MIGRATES = "migrates"
    RESIZED = "resized"
    SAVED = "saved"
    CANNOT_BE_SUSPENDED = "cannot-be-suspended"
    TRESPASSES = "trespasses"
    REPAIRED = "repaired"
    OTHER = "other"
    """Plain text: of a site's own part, or of a journal without reasons."""


class Why(str):
    """A sentence and the kind of reason that it gives. Plain text may stand in its place, and counts as
    OTHER. What is formatted from it is plain text; what is added to it is not."""

    __slots__ = ("_reason",)
    _reason: Reason

    def __new__(cls, reason: Reason, sentence: str) -> Why:
        made = super().__new__(cls, sentence)
        made._reason = reason
        return made

    def __getnewargs__(self) -> tuple[Reason, str]:  # type: ignore[override]
        return self._reason, str(self)

    def __add__(self, more: str) -> Why:
        return Why(self._reason, str(self) + more)

    @property
    def reason(self) -> Reason:
        return self._reason


def reason_of(sentence: str, otherwise: Reason = Reason.OTHER) -> Reason:
    """Its kind; `otherwise`: that of plain text."""
    return sentence.reason if isinstance(sentence, Why) else otherwise
