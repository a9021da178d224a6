# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva top`: what keys do, and what is then on the screen."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from controller.api.client import ApiClient
from controller.api.messages import ExplainMessage, GpusMessage
from controller.reports.study_advice import study_words
from controller.reports.top import detail as detail_module
from controller.reports.top import screen as screen_module
from controller.reports.top.control import press
from controller.reports.top.detail import Detail, ask, lines
from controller.reports.top.frame import Frame, matches, ordered
from controller.reports.top.screen import _keys_in, _read_keys
from controller.reports.top.view import ASCII, UNICODE, Order, Page, View, spark

from .test_words_about_jobs import EVIL, NOW, QUEUED, SUSPENDED, job, live, message


class Screen:
    """A view, the picture drawn of it, and keys pressed."""

    def __init__(self, answer: GpusMessage, **view: Any) -> None:
        self.answer = answer
        self.view: View | None = View(keys=True, **{"height": 16, **view})
        self.draw()

    def draw(self, columns: int = 80) -> list[str]:
        assert self.view is not None
        console = Console(file=io.StringIO(), width=columns, color_system=None, highlight=False)
        self.frame = Frame(self.answer, self.view)
        with console.capture() as capture:
            console.print(self.frame, end="")
        return [line.rstrip() for line in capture.get().split("\n")]

    def press(self, *keys: str) -> list[str]:
        for key in keys:
            assert self.view is not None
            self.view = press(self.view, key, self.frame, "alice")
            lines = self.draw() if self.view else []
        return lines

    @property
    def chosen(self) -> int | None:
        assert self.view is not None
        return self.view.selected


def jobs_in(lines: list[str]) -> list[int]:
    """Job numbers of the list, in its order."""
    header = next(index for index, line in enumerate(lines) if line.startswith("JobID"))
    return [int(line.split()[0]) for line in lines[header + 1 : -1] if line[:1].isdigit()]


def three() -> GpusMessage:
    return message(
        live(7, name="resnet"),
        live(8, user="bob", name="bert", gpus=2, **SUSPENDED),
        live(9, name="gpt", weight=3.0, **QUEUED),
    )


def test_arrows_go_from_job_to_job_and_back_to_the_gpus() -> None:
    screen = Screen(three(), height=30)
    screen.press("down")
    assert screen.chosen == 7
    screen.press("j", "down", "down")
    assert screen.chosen == 9, "it stays on the last one"
    screen.press("up", "k")
    assert screen.chosen == 7
    screen.press("up")
    assert screen.chosen is None
    screen.press("end")
    assert screen.chosen == 9
    screen.press("escape")
    assert screen.chosen is None


def test_the_chosen_job_is_always_seen() -> None:
    answer = message(*[live(n, running_on=[]) for n in range(100, 160)], nodes=2)
    screen = Screen(answer, height=14)
    for key in ["down"] * 70 + ["page up"] * 3 + ["page down"] * 9 + ["up"] * 30:
        lines = screen.press(key)
        if screen.chosen is not None:
            assert any(line.startswith(str(screen.chosen)) for line in lines), (key, screen.chosen)
    assert len(lines) == 14


def test_what_is_typed_after_a_slash_filters_the_jobs() -> None:
    screen = Screen(three(), height=30)
    lines = screen.press("/", "B", "e", "q", "\x7f")
    assert jobs_in(lines) == [8] and lines[-1].startswith("/Be_")
    lines = screen.press("\r")
    assert jobs_in(lines) == [8] and "/ Be" in lines[-1], "Enter keeps it, and q is a key again"
    assert jobs_in(screen.press("escape")) == [7, 8, 9]
    assert "No Gandiva jobs with 'zz'." in screen.press("/", "z", "z")
    assert jobs_in(screen.press("\x15", "9")) == [9]
    assert jobs_in(screen.press("escape")) == [7, 8, 9]


@pytest.mark.parametrize(
    ("word", "found"),
    [("", True), ("7", True), ("ALICE", True), ("trai", True), ("running", True), ("bob", False)],
)
def test_matching(word: str, found: bool) -> None:
    assert matches(live(7), word) is found


def test_sorting_by_columns_and_backwards() -> None:
    screen = Screen(three(), height=30)
    orders = {}
    for _ in Order:
        lines = screen.press("s")
        assert screen.view is not None
        orders[screen.view.order] = jobs_in(lines)
    assert (
        orders[Order.NAME] == [8, 9, 7]
        and orders[Order.GPUS] == [8, 7, 9]
        and orders[Order.WEIGHT] == [9, 7, 8]
    )
    assert "s sort (state)" in screen.draw()[-1]
    assert jobs_in(screen.press("r")) == [9, 8, 7]
    assert "state, reversed" in screen.draw()[-1]
    screen.press(",")
    assert screen.view is not None and screen.view.order is Order.WEIGHT


def test_jobs_user_by_user() -> None:
    lines = Screen(three(), height=30).press("t")
    start = next(index for index, line in enumerate(lines) if line.startswith("JobID")) + 1
    assert lines[start].startswith("alice: 2 jobs, 1 GPU in use, ")
    assert jobs_in(lines) == [7, 9, 8]
    assert any(line.startswith("bob: 1 job, 0 GPUs in use") for line in lines)
    assert [job.job_id for job in ordered(three().jobs, Order.NAME, NOW, reverse=True, by_user=True)] == [
        7,
        9,
        8,
    ]


def test_own_jobs_pause_interval_and_lines_per_node() -> None:
    screen = Screen(three(), height=30)
    assert jobs_in(screen.press("u")) == [7, 9]
    assert "PAUSED" in screen.press("u", "p")[-1]
    assert "every 5 s" in screen.press(" ", "+")[-1]
    assert "every 0.25 s" in screen.press(*["-"] * 20)[-1]
    assert any(line.startswith("n1 ") for line in screen.press("c"))


def test_help_names_every_key_and_goes_away() -> None:
    screen = Screen(three(), height=40)
    lines = screen.press("?")
    text = "\n".join(lines)
    for word in ("Enter", "/", "sort by", "reverse", "user by user", "longer interval", "scancel"):
        assert word in text
    assert jobs_in(screen.press("q")) == [7, 8, 9]
    assert press(screen.view or View(), "q", screen.frame, "") is None
    assert press(View(page=Page.HELP, typing=True), "\x03", screen.frame, "") is None
    for glyphs in (ASCII, UNICODE):
        assert "{" not in "".join(Screen(three(), page=Page.HELP, glyphs=glyphs, height=40).draw())


def test_enter_shows_all_about_the_chosen_job() -> None:
    answer = ExplainMessage(time=NOW, live=live(8, name=EVIL, **SUSPENDED))
    detail = Detail(8, answer, output_path="/home/bob/8.out", output=(f"loss 0.5 {EVIL}",))
    screen = Screen(three(), height=40, detail=detail)
    assert screen.press("\r") == screen.draw(), "without a chosen job it does nothing"
    text = "\n".join(screen.press("down", "down", "\r"))
    assert "is suspended and waits for its turn" in text and "scancel 8" in text
    assert "Output, /home/bob/8.out" in text and "loss 0.5 ?[2J" in text and "\x1b" not in text
    assert jobs_in(screen.press("left")) == [7, 8, 9]
    text = "\n".join(screen.press("up", "\r"))
    assert "Asking about job 7" in text, "what is known of another job is not shown for it"


def test_history_of_gpus_on_wide_screens() -> None:
    history = {"n1:0": (None, 0.0, 0.01, 0.5, 1.0)}
    wide = Screen(three(), history=history).draw(120)
    assert any(line.startswith("n1:0") and "? ▁▄█" in line for line in wide)
    assert all("Lately" not in line for line in Screen(three(), history=history).draw(80))
    assert spark([0.0, 1.0], ASCII) == " #"


# -- where the words come from ------------------------------------------------------------------


class Client(ApiClient):
    def __init__(self) -> None:
        super().__init__("http://nowhere")

    def explain(self, job_id: int) -> ExplainMessage:
        return ExplainMessage(time=NOW, live=live(job_id))


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"a\nb\n", ("a", "b")),
        (b"10%\r20%\r30%", ("30%",)),
        (b"", ("(empty)",)),
        (b"\xff\n" * 50, ("\ufffd",) * 12),
    ],
)
def test_the_end_of_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, shown: tuple[str, ...]
) -> None:
    (tmp_path / "my job.out").write_bytes(content)
    fake = tmp_path / "scontrol"
    fake.write_text(f"#!/bin/sh\necho 'JobId=7 StdErr=/x StdOut={tmp_path}/my job.out Power= UserId=u(1)'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    detail = ask(Client(), 7)
    assert detail.slurm is not None and detail.output_path == f"{tmp_path}/my job.out"
    assert detail.output == shown


def test_a_trial_of_a_study_has_its_output_there_and_slurm_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slurm(*_: object) -> None:
        pytest.fail("asked")

    monkeypatch.setattr("subprocess.run", slurm)
    (tmp_path / "7.out").write_text("loss 0.5\n")
    said = "\n".join(lines(ask(Client(), 7, tmp_path), 80, study_words(Path("lr"))))
    assert f"Output, {tmp_path}/7.out\n  loss 0.5" in said
    assert "\nTo stop it: gandiva trials stop --study lr 7\n" in said and "scancel" not in said
    gone = "\n".join(lines(ask(Client(), 8, tmp_path), 80))
    assert f"{tmp_path}/8.out\n  (cannot be read here: No such file or directory)" in gone


def test_a_job_that_is_over_is_told_of_as_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Over(Client):
        def explain(self, job_id: int) -> ExplainMessage:
            return ExplainMessage(time=NOW, job=job(job_id=job_id, state="UNKNOWN", end_time=NOW - 5))

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert "is over: UNKNOWN" in "\n".join(lines(ask(Over(), 7), 80)), "without sacct"
    (tmp_path / "sacct").write_text("#!/bin/sh\necho '7|7|FAILED|255:0|Unknown|Unknown'\n")
    (tmp_path / "sacct").chmod(0o755)
    said = "\n".join(lines(ask(Over(), 7), 80))
    assert "is over: FAILED" in said and "exit code 255:0" in said


def test_output_that_is_a_pipe_or_not_ours_or_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert detail_module._tail(str(tmp_path / "pipe")) == ("(not a file)",)
    assert detail_module._tail(str(tmp_path / "none")) == (
        "(cannot be read here: No such file or directory)",
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Output" not in "\n".join(lines(ask(Client(), 7), 80))


def test_what_is_no_file_is_not_even_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's user chooses the path; an operator's `top` must not set off what a device does when opened."""
    opened: list[str] = []
    real = os.open

    def noted(path: str, flags: int, *rest: int) -> int:
        if not flags & os.O_PATH:
            opened.append(path)
        return real(path, flags, *rest)

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("loss 0.5\n")
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", noted)
        for path in (tmp_path / "pipe", Path("/dev/null"), tmp_path):
            assert detail_module._tail(str(path)) == ("(not a file)",)
        assert opened == []
        assert detail_module._tail(str(tmp_path / "file")) == ("loss 0.5",)
        assert len(opened) == 1


def test_a_key_that_arrives_in_pieces_is_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen_module, "_SEQUENCE_SECONDS", 20.0)
    read, write = os.pipe()
    try:
        os.write(write, b"\x1b")
        later = threading.Timer(0.2, os.write, (write, b"[B"))
        later.start()
        assert list(_keys_in(_read_keys(read))) == ["down"]
        later.join()
        monkeypatch.setattr(screen_module, "_SEQUENCE_SECONDS", 0.0)
        os.write(write, b"\x1b")
        assert list(_keys_in(_read_keys(read))) == ["escape"], "and Escape alone is Escape"
    finally:
        os.close(read)
        os.close(write)
