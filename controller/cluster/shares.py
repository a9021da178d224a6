# SPDX-License-Identifier: GPL-2.0-or-later
"""What `sshare` prints: the tree of associations with shares, usage and Slurm's fair-share factor.

Accounts are indented by one space for each level, users by one more than their account:

    root|||1.000000|
     vision||1|0.250000|
      vision|alice|1|0.125000|0.500000
"""

import math

from controller.errors import ClusterUnavailable
from controller.model import Share

SSHARE = (
    "sshare", "--all", "--parsable2", "--noheader", "--format=Account,User,RawShares,EffectvUsage,FairShare",
)  # fmt: skip

_COLUMNS = 5
_PARENT = "parent"
"""The association shares what its parent has, without a part of its own: counted as one share."""


def parse_shares(text: str, what: str) -> tuple[Share, ...]:
    """The associations, parents first. A user who has several in one account (for partitions) has the first.

    Args:
        text: the answer to SSHARE.
        what: is being done, for the message.

    Raises:
        ClusterUnavailable: a line is not as described above.
    """
    found: dict[str, Share] = {}
    path: list[str] = []
    """Accounts from the root to the one of the line."""
    for number, line in enumerate(text.splitlines(), 1):
        columns = line.split("|")
        account = columns[0].strip(" ")
        depth = len(columns[0]) - len(columns[0].lstrip(" "))
        try:
            if len(columns) != _COLUMNS or not account or depth > len(path):
                raise ValueError
            shares, usage, factor = columns[2:]
            weight = 1.0 if shares in ("", _PARENT) else _number(shares)
            user = columns[1]
            if user:
                share = Share(f"{account}/{user}", account, weight, _number(usage), _number(factor or "0"))
            else:
                del path[depth:]
                share = Share(account, path[-1] if path else None, weight, _number(usage))
                path.append(account)
            if share.parent is not None and share.parent not in found:
                raise ValueError
        except ValueError:
            raise ClusterUnavailable(f"{what}: sshare printed in line {number}: {line[:100]!r}") from None
        found.setdefault(share.name, share)
    return tuple(found.values())


def _number(text: str) -> float:
    """Raises ValueError where it is not a number from 0 on."""
    number = float(text or "0")
    if not (math.isfinite(number) and number >= 0):
        raise ValueError
    return number
