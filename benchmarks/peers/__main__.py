# SPDX-License-Identifier: GPL-2.0-or-later
"""Our simulator beside those of Tiresias and Blox, in one run and one table.

    python -m benchmarks.peers [tiresias|blox] [--only REGEX] [--repeat N]

GANDIVA_TIRESIAS   clone of SymbioticLab/Tiresias (commit 959f9b0 was used); GANDIVA_PYTHON2: a Python 2.7
GANDIVA_BLOX       clone of msr-fiddle/blox (commit c8851b2 was used), with its gRPC stubs made;
                   GANDIVA_BLOX_PYTHON: a Python with pandas < 2, matplotlib, grpcio and protobuf < 5
GANDIVA_REFS       the reference inputs and results
"""

from __future__ import annotations

import argparse
import re
import sys

from benchmarks.peers import blox, tiresias
from benchmarks.peers.measure import HEADER, Row, compare, outcome

PEERS = {"tiresias": tiresias, "blox": blox}


def main(arguments: list[str] | None = None) -> int:
    """Print the table. Status 0, too, when there is nothing to compare with, which is said."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", nargs="?", choices=PEERS, help="default: both")
    parser.add_argument("--only", default="", metavar="REGEX", help="of `case policy`")
    parser.add_argument("--repeat", type=int, default=2, metavar="N", help="alternating; the best counts")
    args = parser.parse_args(arguments)
    rows: list[Row] = []
    for name in [args.peer] if args.peer else PEERS:
        peer = PEERS[name]
        if problem := peer.missing():
            print(f"not compared with {name}: {problem}", flush=True)
            continue
        for case in peer.cases():
            if re.search(args.only, f"{case.name} {case.policy}"):
                print(f"{HEADER}\n" if not rows else "", end="")
                rows.append(compare(name, case, args.repeat))
                print(rows[-1], flush=True)
    if rows:
        print(f"\n{outcome(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
