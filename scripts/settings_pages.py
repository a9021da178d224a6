#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes what is made from the schema of the settings: configs/gandiva.toml, docs/settings.md, and the manual
page gandiva.toml(5). A unit test fails where they are out of date.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from controller.settings.describe import Key, tables, to_toml
from controller.settings.generate import sample

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
    return "\n".join(lines) + "\n"


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
