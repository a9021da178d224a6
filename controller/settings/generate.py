# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings files made from the schema: the sample, and the settings in force."""

import textwrap
from operator import attrgetter

from controller.settings.describe import Key, tables, to_toml
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


def show(settings: Settings, source: str) -> str:
    """The settings in force as TOML; keys that differ from the default are marked."""
    lines = [f"# in force with {source}; '# set' marks what is not the default"]
    defaults = Settings()
    for table in tables():
        lines += ["", f"[{table.name}]"]
        lines += [_shown(settings, defaults, key) for key in table.keys]
    return "\n".join(lines) + "\n"


def _shown(settings: Settings, defaults: Settings, key: Key) -> str:
    value, default = map(attrgetter(key.path.replace("-", "_")), (settings, defaults))
    if value is None:
        derived = settings.api_url if key.path == "api.url" else None
        return f"#{key.name} = " + (f"{to_toml(derived)}  # derived" if derived else '""  # unset')
    return f"{key.name} = {to_toml(value)}" + ("" if value == default else "  # set")
