#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes what is made from the schema of the settings: configs/gandiva.toml, docs/settings.md, and the manual
page gandiva.toml(5). A unit test fails where they are out of date.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from controller.settings.describe import Key, tables, to_toml
from controller.settings.generate import sample
from controller.settings.policies import GAVEL, MOVED, POLICIES

_INTRODUCTION = """\
The controller reads `/etc/gandiva/gandiva.toml`, or the file named by `--config` or `GANDIVA_CONFIG`.
Every key may be left out. An unknown key, a value of the wrong type or outside its limits is refused with
a message that names it, and nothing is changed. `gandiva config check` tries a file, `gandiva config show`
prints what is in force, `gandiva config sample` prints a file with all keys.

SIGHUP (`systemctl reload gandiva`) reads the file again; a file with an error is reported and the old
settings stay. Keys marked *restart* take effect at the next start of the daemon.

Clients (`gandiva report`, `top`, `explain`, `status`) use `cluster.controller_host` and `[api]` alone.
"""


def reference() -> str:
    """docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "<!-- Made from the schema in controller/settings: python scripts/settings_pages.py -->",
        "",
        *"\n\n".join(map(_paragraph, _INTRODUCTION.split("\n\n"))).splitlines(),
    ]
    for table in tables():
        lines += ["", f"## [{table.name}]", "", _paragraph(table.description)]
        if table.keys:
            lines += ["", "| key | value | default | meaning |", "|---|---|---|---|"]
            lines += [_row(key) for key in table.keys]
        if table.name == "policy":
            lines += ["", *_policies()]
    lines += ["", "## Deprecated keys", "", _paragraph(_DEPRECATED), "", "| deprecated | now |", "|---|---|"]
    lines += [f"| {old} | {new} |" for old, new in _moved()]
    return "\n".join(lines) + "\n"


_ABOUT = {
    "fifo": "First come, first served on whole GPUs, as stock Slurm would without backfill.",
    "gandiva": "Affinity placement and weighted fair time-slicing (OSDI'18).",
    "tiresias-las": "Tiresias-L: least attained service, for when nothing is known of how long jobs take.",
    "tiresias-gittins": "Tiresias-G: Gittins index in each queue, from the GPU time of finished jobs.",
    "fifo-skip": "First come, first served, but later jobs may pass one that does not fit. No preemption.",
    "sjf": "Smallest job first: the fewest GPUs. Preempts.",
    "srtf": "Shortest remaining time first. Preempts. Only where durations are known.",
    "srsf": "Shortest remaining service (time x GPUs) first. Preempts. Only where durations are known.",
    "allox": (
        "AlloX: the sum of completion times is the least. A job that has begun stays. It is for jobs of "
        "one GPU: in rounds others have GPUs that those leave."
    ),
    "gavel-cost": "The most throughput per price of the GPUs in use.",
    "gavel-cost-slo": "The same, while jobs with a deadline end in time.",
    "gavel-fifo": "First come, first served: early jobs get their fastest types.",
    "gavel-ftf": (
        "Finish-time fairness (Themis): the largest ratio of a job's finish time to that on its own part "
        "of the cluster is as small as it can be."
    ),
    "gavel-gandiva": (
        "Gandiva as Gavel's evaluation has it: equal shares, and random pairs when there are too few GPUs."
    ),
    "gavel-hierarchical": (
        "Water filling: max-min fairness between entities by their weights, and inside each between its "
        "jobs, or one after the other. What one cannot use goes to the others."
    ),
    "gavel-las": (
        "Gavel's max-min fairness (OSDI'20): the least share of all jobs is as large as it can be. A "
        "job's share is its throughput relative to an equal split of all types, times its GPUs, divided "
        "by its weight."
    ),
    "gavel-makespan": "The last of the jobs ends as early as possible.",
    "gavel-max-throughput": "The sum of all throughputs is as large as it can be.",
    "gavel-sjf": (
        "Shortest job first: the job with the least time left takes its fastest free type, then the next."
    ),
    "gavel-strategy-proof": (
        "Max-min fairness (the Nash product) in which no job gains by lying about its throughputs: each "
        "gets less by what it costs the others."
    ),
    "isolated": "Each job has a part of the cluster to itself.",
    "proportional": "Each job has the same part of every type's time.",
}
_READS = "What each policy is, and the keys that it reads; others have no effect on it:"


def _policies() -> Iterator[str]:
    """What each is and reads."""
    yield from (_READS, "", "| policy | what it does | its keys |", "|---|---|---|")
    for name in POLICIES:
        yield f"| `{name}` | {_ABOUT[name]} | {'; '.join(_read(name))} |"


def _read(name: str) -> Iterator[str]:
    """The keys of each table; a table alone where all of its keys are read."""
    whole = {table.name: [key.name for key in table.keys] for table in tables()}
    for table in dict.fromkeys(POLICIES[name].values()):
        keys = [key for key, its in POLICIES[name].items() if its == table]
        yield f"`[{table}]`" + ("" if keys == whole[table] else ": " + ", ".join(f"`{key}`" for key in keys))


_DEPRECATED = """\
Keys of earlier releases are read until the next release, with a warning for each from `gandiva check`, `gandiva
config check`, `gandiva simulate` and in the daemon's log. In the table of a policy or move that is not in
use they have no effect. A deprecated key that contradicts another key is an error. What was said for each
policy or move is said once for all of them: where `[policy.pack]` alone had trial_seconds, for example, it
counts for grow and separate too."""


def _moved() -> Iterator[tuple[str, str]]:
    """Deprecated keys and tables by where they are now."""
    moved = {old: now.key.rpartition(".")[0] for old, now in MOVED.items() if now.instead is None}
    for place in dict.fromkeys(moved.values()):
        old_keys = [old.split(".") for old in moved if moved[old] == place]
        keys = ", ".join(f"`{key}`" for key in dict.fromkeys(key for *_, key in old_keys))
        of = ", ".join(f"`[policy.{table}]`" for table in dict.fromkeys(table for _, table, _ in old_keys))
        yield f"{keys} of {of}", f"`[{place}]`"
    gone = ", ".join(
        f"`{key}`" for key in dict.fromkeys(old.split(".")[2] for old, now in MOVED.items() if not now.key)
    )
    yield f"{gone} of the same tables", f"nothing, where they say what is so anyway: {GAVEL}"
    for old, now in MOVED.items():
        if now.key and now.instead is not None:
            yield f"`{old} = {to_toml(now.instead[0])}`", f"`{now.words}`"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _row(key: Key) -> str:
    default = "–" if key.default is None else f"`{to_toml(key.default)}`"
    meaning = key.description + (" *restart*" if key.restart else "")
    return f"| `{key.name}` | {key.type} | {default} | {meaning.replace('|', chr(92) + '|')} |"


_HEAD = r"""
.\" SPDX-License-Identifier: GPL-2.0-or-later
.\" Made from the schema in controller/settings: python scripts/settings_pages.py
.TH GANDIVA.TOML 5 "" "Gandiva for Slurm" "File Formats"
.SH NAME
gandiva.toml \- settings of the Gandiva controller and its clients
.SH DESCRIPTION
""".strip()

_FOOT = r"""
.SH EXAMPLE
.nf
[cluster]
controller_host = "ctl"

[suspend]
residual_limit_bytes = "512MiB"

[policy.gandiva]
slice_seconds = 30
priority_by_qos = { urgent = 10 }
.fi
.SH SEE ALSO
.BR gandiva\-config (1),
.BR gandivad (8)
""".strip()


def manual() -> str:
    """docs/man/gandiva.toml.5, in roff."""
    lines = [_HEAD, *(_roff(line) or ".PP" for line in _INTRODUCTION.splitlines())]
    for table in tables():
        lines += [f".SH [{_roff(table.name)}]", _roff(table.description)]
        for key in table.keys:
            lines += [".TP", rf"\fB{_roff(key.name)}\fR", *_sentences(key)]
        if table.name == "policy":
            lines += [".PP", _READS]
            for name in POLICIES:
                reads = f"It reads {'; '.join(_read(name)) or 'none'}."
                lines += [".TP", rf"\fB{_roff(name)}\fR", _roff(_ABOUT[name]), _roff(reads)]
    lines += [".SH DEPRECATED KEYS", _roff(" ".join(_DEPRECATED.split()))]
    for old, new in _moved():
        lines += [".TP", _roff(old), _roff(f"now: {new}")]
    return "\n".join([*lines, _FOOT]) + "\n"


def _sentences(key: Key) -> list[str]:
    default = "not set" if key.default is None else to_toml(key.default)
    restart = " (restart)" if key.restart else ""
    facts = f"{key.type[0].upper()}{key.type[1:]}; default: {default}.{restart}"
    # One sentence a line, as roff likes it.
    return [_roff(line) for line in [*re.split(r"(?<=[.:;]) (?=[A-Za-z])", key.description), facts]]


def _roff(text: str) -> str:
    """Text with the characters that roff takes for its own escaped, and code and *emphasis* in its fonts."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("…", r"\&...").replace("’", "'")
    text = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", text)
    text = re.sub(r"\*(\w+)\*", r"\\fI\1\\fR", text)
    return r"\&" + text if text.startswith((".", "'")) else text


def main() -> None:
    """Write the files."""
    (ROOT / "configs" / "gandiva.toml").write_text(sample(), encoding="utf-8")
    (ROOT / "docs" / "settings.md").write_text(reference(), encoding="utf-8")
    (ROOT / "docs" / "man" / "gandiva.toml.5").write_text(manual(), encoding="utf-8")


if __name__ == "__main__":
    main()
