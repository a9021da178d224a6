# SPDX-License-Identifier: GPL-2.0-or-later
"""The manual page gandiva.toml(5), made from the schema."""

from __future__ import annotations

import re

from controller.settings.describe import Key, tables, to_toml

_HEAD = r"""
.\" SPDX-License-Identifier: GPL-2.0-or-later
.\" Made from the schema in controller/settings: python -m controller.settings.generate
.TH GANDIVA.TOML 5 "" "Gandiva for Slurm" "File Formats"
.SH NAME
gandiva.toml \- settings of the Gandiva controller and its clients
.SH DESCRIPTION
The controller reads
.IR /etc/gandiva/gandiva.toml ,
or the file named by
.B \-\-config
or
.BR $GANDIVA_CONFIG .
It is TOML.
Every key may be left out.
An unknown key, or a value of the wrong type or outside its limits, is refused with a message that names it,
and nothing is changed.
.PP
After SIGHUP (systemctl reload gandiva) the file is read again; where it has an error, the old settings stay.
Keys marked
.I restart
take effect at the next start of the daemon.
.PP
Clients
.RB ( "gandiva report" ,
.BR top ,
.BR explain ,
.BR status )
use cluster.controller_host and [api] alone, and do without a file where none is installed.
""".lstrip()

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
""".lstrip()


def manual() -> str:
    """The page in roff, for man(7)."""
    lines = [_HEAD.rstrip("\n")]
    for table in tables():
        lines += [f".SH [{_roff(table.name)}]", _roff(table.description)]
        for key in table.keys:
            lines += [".TP", rf"\fB{_roff(key.name)}\fR", *_sentences(key)]
    lines.append(_FOOT.rstrip("\n"))
    return "\n".join(lines) + "\n"


def _sentences(key: Key) -> list[str]:
    default = "not set" if key.default is None else to_toml(key.default)
    facts = f"{key.type[0].upper()}{key.type[1:]}; default: {default}." + (
        " (restart)" if key.restart else ""
    )
    # One sentence a line, as roff likes it.
    return [_roff(line) for line in [*re.split(r"(?<=[.:;]) (?=[A-Za-z])", key.description), facts]]


def _roff(text: str) -> str:
    """Text with the characters that roff takes for its own escaped."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("…", r"\&...").replace("’", "'")
    return r"\&" + text if text.startswith((".", "'")) else text
