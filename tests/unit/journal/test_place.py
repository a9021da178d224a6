# SPDX-License-Identifier: GPL-2.0-or-later
"""A journal that is not there, or that one may not look at: an error that says which, on every Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.cli.main import main
from controller.errors import JournalError
from controller.journal import Journal, JournalReader
from controller.journal.reader import require_journal
from controller.journal.vacuum import vacuum
from controller.journal.verify import verify

WAYS: list[Callable[[Path], object]] = [
    require_journal,
    verify,
    lambda path: vacuum(path, retention_days=1, detail_days=1),
    lambda path: JournalReader(path).events(limit=1),
]


def forbid(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """What is in this folder may not be looked at; root always may, and may run these tests."""
    stat = Path.stat

    def refused(path: Path, **options: Any) -> Any:
        if folder in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refused)


@pytest.mark.parametrize("ask", WAYS)
def test_each_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Path], object]
) -> None:
    with pytest.raises(JournalError, match="there is no journal"):
        ask(tmp_path / "j")
    (tmp_path / "folder").mkdir()
    with pytest.raises(JournalError, match="is no file"):
        ask(tmp_path / "folder")
    Journal(tmp_path / "k").close()
    ask(tmp_path / "k")
    forbid(monkeypatch, tmp_path)
    with pytest.raises(JournalError, match=r"cannot look at the journal .*Permission denied"):
        ask(tmp_path / "k")


def test_no_traceback_for_a_file_that_one_may_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forbid(monkeypatch, tmp_path)
    assert main(["journal", "verify", str(tmp_path / "j")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("gandiva: ") and str(tmp_path / "j") in said and "Permission denied" in said
