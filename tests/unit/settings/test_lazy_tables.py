# SPDX-License-Identifier: GPL-2.0-or-later
"""Tables are made when somebody wants them, and are the same as those made by themselves."""

from __future__ import annotations

import subprocess
import sys
import typing
from pathlib import Path

from pydantic import BaseModel

from controller.settings.base import Section
from controller.settings.loading import check_values
from controller.settings.schema import Settings

ROOT = Path(__file__).resolve().parents[3]


def inner(section: type[BaseModel]) -> dict[str, type[BaseModel]]:
    hints = typing.get_type_hints(section)
    return {
        name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Section)
    }


def test_a_table_that_the_file_lacks_has_its_own_defaults() -> None:
    for settings in (Settings(), check_values({}, "nothing"), check_values({"policy": {}}, "empty")):
        assert inner(Settings)
        for name, section in inner(Settings).items():
            assert getattr(settings, name) == section()
        assert inner(type(settings.policy))
        for name, section in inner(type(settings.policy)).items():
            assert getattr(settings.policy, name) == section()


def test_only_the_whole_file_gets_a_validator() -> None:
    code = (
        "from controller.settings.loading import check_values\n"
        "from controller.settings.base import Section\n"
        "check_values({}, '')\n"
        "made = {c.__name__ for c in Section.__subclasses__() if c.__pydantic_complete__}\n"
        "print(sorted(made))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "['Settings']\n"
