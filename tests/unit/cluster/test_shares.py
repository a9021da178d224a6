# SPDX-License-Identifier: GPL-2.0-or-later
"""What `sshare` prints, as the tree of shares."""

from __future__ import annotations

import pytest

from controller.cluster.shares import parse_shares
from controller.errors import ClusterUnavailable
from controller.model import Share

PRINTED = """\
root|||1.000000|
 root|root|1|0.000000|1.000000
 science||3|0.750000|
  speech||parent|0.250000|
   speech|carol|parent|0.250000|0.200000
  vision||2|0.500000|
   vision|alice|1|0.500000|0.400000
   vision|alice|5|0.500000|0.300000
 system||1|0.000000|
  system|gandiva|0|0.000000|1.000000
"""
"""Nested accounts, shares of the parent, and a user with an association for a partition besides."""


def test_the_tree() -> None:
    assert parse_shares(PRINTED, "reading") == (
        Share("root", None, 1.0, 1.0),
        Share("root/root", "root", 1.0, 0.0, 1.0),
        Share("science", "root", 3.0, 0.75),
        Share("speech", "science", 1.0, 0.25),
        Share("speech/carol", "speech", 1.0, 0.25, 0.2),
        Share("vision", "science", 2.0, 0.5),
        Share("vision/alice", "vision", 1.0, 0.5, 0.4),
        Share("system", "root", 1.0, 0.0),
        Share("system/gandiva", "system", 0.0, 0.0, 1.0),
    )


def test_no_accounting_gives_no_shares() -> None:
    assert parse_shares("", "reading") == ()


@pytest.mark.parametrize(
    "line",
    [
        "vision|alice|1|0.5",
        "vision|alice|1|0.5|0.4|7",
        "vision|alice|many|0.5|0.4",
        "vision|alice|-1|0.5|0.4",
        "vision|alice|1|nan|0.4",
        "|alice|1|0.5|0.4",
        "  vision||1|0.5|",
        " speech|carol|1|0.5|0.4",
        "sshare: error",
    ],
)
def test_another_line_is_named(line: str) -> None:
    with pytest.raises(ClusterUnavailable, match="reading the shares: sshare printed in line 2"):
        parse_shares(f"root|||1.0|\n{line}\n", "reading the shares")
