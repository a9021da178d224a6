# SPDX-License-Identifier: GPL-2.0-or-later
"""The settings of the controller and of its clients: one schema, read from TOML.

The schema gives validation, the sample file, the reference page and `gandiva config show`.
Names are resolved on first use, because policies define their own sections on top of
`controller.settings.base` while the schema includes the policies' sections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controller.settings.base import Section, setting
    from controller.settings.loading import (
        DEFAULT_PATH,
        InvalidSettings,
        client_settings,
        load_settings,
        parse_settings,
        settings_path,
    )
    from controller.settings.schema import Settings, needs_restart

_HOME = {
    "Section": "base",
    "setting": "base",
    "DEFAULT_PATH": "loading",
    "InvalidSettings": "loading",
    "client_settings": "loading",
    "load_settings": "loading",
    "parse_settings": "loading",
    "settings_path": "loading",
    "Settings": "schema",
    "needs_restart": "schema",
}

__all__ = [
    "DEFAULT_PATH",
    "InvalidSettings",
    "Section",
    "Settings",
    "client_settings",
    "load_settings",
    "needs_restart",
    "parse_settings",
    "setting",
    "settings_path",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
