# SPDX-License-Identifier: GPL-2.0-or-later
"""The file of job sizes is read where the policy is put together, and every mistake in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.errors import SettingsError
from controller.policies.registry import make_policy
from controller.policies.tiresias import TiresiasGittins, TiresiasGittinsSettings
from controller.settings.policies import PolicySettings


def settings(path: Path) -> PolicySettings:
    return PolicySettings(
        name="tiresias-gittins",
        tiresias_gittins=TiresiasGittinsSettings(distribution=str(path), samples_needed=2),
    )


def test_the_policy_begins_with_the_samples(tmp_path: Path) -> None:
    path = tmp_path / "sizes.csv"
    path.write_text("name,duration\na,10\nb,20\n")
    policy = make_policy(settings(path))
    assert isinstance(policy, TiresiasGittins)
    assert policy.index(5.0, 0) == pytest.approx(1 / 10)


def test_the_policy_itself_reads_no_file(tmp_path: Path) -> None:
    named = TiresiasGittinsSettings(distribution=str(tmp_path / "not-there.csv"), samples_needed=1)
    assert TiresiasGittins(named).index(5.0, 0) is None


@pytest.mark.parametrize(
    "text,words",
    [
        (b"size\n1\n", "line 1: there is no column `duration`"),
        (b"duration\n5\nlong\n", "line 3, column `duration`: 'long' is not a positive number"),
        (b"a,duration\nx,5\nx\n", "line 3, column `duration`: None is not a positive number"),
        (b"duration\n-1\n", "line 2, column `duration`: '-1' is not"),
        (b"duration\nnan\n", "line 2, column `duration`: 'nan' is not"),
        (b"duration\n", "no samples"),
        (b"duration\n\xff\n", "not a CSV file"),
    ],
)
def test_a_bad_file_is_refused_with_place(tmp_path: Path, text: bytes, words: str) -> None:
    path = tmp_path / "sizes.csv"
    path.write_bytes(text)
    with pytest.raises(SettingsError, match=words.replace("`", ".")) as caught:
        make_policy(settings(path))
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read the distribution .*No such file"):
        make_policy(settings(tmp_path / "none.csv"))
