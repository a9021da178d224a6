# SPDX-License-Identifier: GPL-2.0-or-later
"""Files made from the schema: the sample, the reference page, and the settings in force.

`python -m controller.settings.generate` rewrites configs/gandiva.toml, docs/settings.md and the manual
page gandiva.toml(5); a unit test fails where they are out of date.
"""

import re
import textwrap
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from controller.settings.describe import Key, Table, tables, to_toml
from controller.settings.schema import Settings

WIDTH = 100


def sample() -> str:
    """configs/gandiva.toml: every key, commented out, with its default and meaning."""
    lines = [
        "# Settings of Gandiva for Slurm; see gandiva.toml(5). Every key is shown with its default.",
        "# Check the file with `gandiva config check`, see what is in force with `gandiva config show`.",
    ]
    for table in tables():
        lines += ["", *_comment(table.description), f"[{table.name}]"]
        for key in table.keys:
            restart = "; takes effect at a restart" if key.restart else ""
            lines += ["", *_comment(f"{key.description} ({key.type}{restart})")]
            lines.append(f"#{key.name} = {_example(key)}")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


_UNSET_EXAMPLES = {"api.url": '"http://ctl:6822"', "log.file": '"/var/log/gandiva/gandiva.log"'}


def _example(key: Key) -> str:
    if key.default is not None:
        return to_toml(key.default)
    return _UNSET_EXAMPLES.get(key.path, '"/path/to/a/file"' if "path" in key.type else '""')


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
        "<!-- Made from the schema in controller/settings: python -m controller.settings.generate -->",
        "",
        *_INTRODUCTION.splitlines(),
    ]
    for table in tables():
        lines += ["", f"## [{table.name}]", "", table.description]
        if table.keys:
            lines += ["", "| key | value | default | meaning |", "|---|---|---|---|"]
            lines += [_row(key) for key in table.keys]
    return "\n".join(lines) + "\n"


def _row(key: Key) -> str:
    default = "–" if key.default is None else f"`{to_toml(key.default)}`"
    meaning = key.description + (" *restart*" if key.restart else "")
    return f"| `{key.name}` | {key.type} | {default} | {meaning.replace('|', chr(92) + '|')} |"


_HEAD = r"""
.\" SPDX-License-Identifier: GPL-2.0-or-later
.\" Made from the schema in controller/settings: python -m controller.settings.generate
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


def show(settings: Settings, source: str) -> str:
    """The settings in force as TOML; keys that differ from the default are marked."""
    lines = [f"# in force with {source}; '# set' marks what is not the default"]
    defaults = Settings()
    for table in tables():
        lines += ["", f"[{table.name}]"]
        lines += [_shown(settings, defaults, table, key) for key in table.keys]
    return "\n".join(lines) + "\n"


def _value(settings: Settings, table: Table, key: Key) -> Any:
    section: BaseModel = settings
    for part in table.name.split("."):
        section = getattr(section, part.replace("-", "_"))
    return getattr(section, key.name)


def _shown(settings: Settings, defaults: Settings, table: Table, key: Key) -> str:
    value = _value(settings, table, key)
    if value is None:
        derived = settings.api_url if key.path == "api.url" else None
        return f"#{key.name} = " + (f"{to_toml(derived)}  # derived" if derived else '""  # unset')
    line = f"{key.name} = {to_toml(value)}"
    return line if value == _value(defaults, table, key) else f"{line}  # set"


def main(root: Path | None = None) -> None:
    """Rewrite the generated files under the source tree `root` (default: this one)."""
    base = root or Path(__file__).resolve().parents[2]
    (base / "configs" / "gandiva.toml").write_text(sample(), encoding="utf-8")
    (base / "docs" / "settings.md").write_text(reference(), encoding="utf-8")
    (base / "docs" / "man" / "gandiva.toml.5").write_text(manual(), encoding="utf-8")


if __name__ == "__main__":
    main()
