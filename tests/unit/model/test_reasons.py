# SPDX-License-Identifier: GPL-2.0-or-later
"""A sentence keeps its kind of reason wherever it goes; plain text has none."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import pytest

from controller.model import Reason, Why, reason_of

WHY = Why(Reason.AT_LIMIT, "AssocGrpGRES")


@pytest.mark.parametrize("other", [copy.deepcopy(WHY), pickle.loads(pickle.dumps(WHY)), WHY + ""])
def test_a_sentence_is_text_and_keeps_its_reason(other: str) -> None:
    assert (other, reason_of(other)) == ("AssocGrpGRES", Reason.AT_LIMIT)


def test_what_is_added_keeps_it_and_what_is_formatted_has_none() -> None:
    assert (WHY + "; 2 jobs", (WHY + "; 2 jobs").reason) == ("AssocGrpGRES; 2 jobs", Reason.AT_LIMIT)
    assert reason_of(f"start failed ({WHY})") is Reason.OTHER
    assert reason_of("plain", Reason.NOT_ELIGIBLE) is Reason.NOT_ELIGIBLE


def test_it_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        WHY.reason = Reason.OTHER  # type: ignore[misc]
    assert not hasattr(WHY, "__dict__")


def test_the_page_says_of_each_reason_what_to_do() -> None:
    """docs/reports.md, the table of reasons, in the order of the members."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "reports.md").read_text()
    table = page.partition("### Reasons\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)
    assert [name for name, meaning, follows in rows if meaning.strip() and follows.strip()] == list(Reason)
