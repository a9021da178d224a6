# SPDX-License-Identifier: GPL-2.0-or-later
"""The manual pages say all that the commands can do, and render without a warning."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from controller.cli.main import build_parser
from controller.reports.job_ids import CODES
from controller.reports.table import COLUMNS
from controller.reports.when import FORMS
from controller.settings.describe import tables

MAN = Path(__file__).resolve().parents[3] / "docs" / "man"
PAGES = sorted(MAN.glob("*.[1-8]"))
PAGE_OF = {
    "run": "gandiva-run.1",
    "report": "gandiva-report.1",
    "top": "gandiva-top.1",
    "explain": "gandiva-explain.1",
    "config": "gandiva-config.1",
    "check": "gandiva-check.8",
    "simulate": "gandiva-simulate.1",
    "replay": "gandiva-replay.1",
    "trace": "gandiva-trace.1",
    "allocate": "gandiva-allocate.1",
    "status": "gandiva.1",
    "daemon": "gandivad.8",
    "journal": "gandiva-journal.8",
    "checkpoint": "gandiva-checkpoint.1",
    "rates": "gandiva-rates.8",
    "trials": "gandiva-trials.1",
}


def plain(page: str) -> str:
    """The page without its roff."""
    text = (MAN / page).read_text(encoding="utf-8")
    text = re.sub(r"\\f[A-Z]", "", text).replace(r"\-", "-").replace(r"\&", "")
    return re.sub(r'^\.[A-Z]+ ?| "|" ', " ", text, flags=re.MULTILINE).replace('"', "")


def parsers() -> dict[str, argparse.ArgumentParser]:
    (action,) = [a for a in build_parser(["slurm"])._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(action.choices)


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    found: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                found += options_of(sub)
        found += action.option_strings
    return found


def test_every_command_has_a_page_and_is_named_in_the_first() -> None:
    assert set(PAGE_OF) == set(parsers())
    for command in PAGE_OF:
        assert re.search(rf"^\.B {command}$", (MAN / "gandiva.1").read_text(), re.MULTILINE), command


@pytest.mark.parametrize("command", PAGE_OF)
def test_every_option_is_in_the_page(command: str) -> None:
    text = plain(PAGE_OF[command])
    missing = [
        o
        for o in options_of(parsers()[command])
        if not re.search(rf"(?<![\w-]){re.escape(o)}(?![\w-])", text)
    ]
    assert missing == []


@pytest.mark.parametrize("command", PAGE_OF)
def test_the_page_names_no_option_that_is_not_there(command: str) -> None:
    known = set(options_of(parsers()[command])) | set(options_of(build_parser()))
    section = plain(PAGE_OF[command]).split("\n OPTIONS\n")[1].split("\n EXAMPLES\n")[0]
    named = set(re.findall(r"(?<![\w-])--[a-z0-9][\w-]*", section))
    assert named <= known


def test_options_of_the_agent() -> None:
    from controller.agent import main as agent

    source = Path(agent.__file__).read_text(encoding="utf-8")
    options = re.findall(r'"(--[a-z-]+)"', source)
    assert options
    for option in options:
        assert option in plain("gandiva-agent.8")


def test_columns_states_and_times_of_the_report() -> None:
    text = plain("gandiva-report.1")
    for column in COLUMNS:
        assert re.search(rf"^ {column.name}$", text, re.MULTILINE), column.name
    words = set(re.findall(r"\w+", text))
    assert set(CODES) <= words
    for form in re.findall(
        r"[A-Z/.]+\[[A-Z:/.]+\]|midnight|noon|fika|teatime|tomorrow|elevenses|utsEPOCH", FORMS
    ):
        assert form in text, form


def test_keys_of_the_settings() -> None:
    text = plain("gandiva.toml.5")
    for table in tables():
        assert f"[{table.name}]" in text
        for key in table.keys:
            assert re.search(rf"^{key.name}$", text, re.MULTILINE), key.path


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_render_without_a_warning(page: Path) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z", str(page)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""


def test_pages_refer_to_pages_that_exist() -> None:
    own = {page.name.rsplit(".", 1)[0] for page in PAGES}
    for page in PAGES:
        for name in re.findall(r"\b(gandiva[\w.-]*) ?\(\d\)", plain(page.name)):
            assert name in own, f"{page.name}: {name}"
