# SPDX-License-Identifier: GPL-2.0-or-later
"""Times, sizes, states and widths, as sacct writes and reads them."""

from __future__ import annotations

import contextlib
import time
import unicodedata
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import GandivaError
from controller.reports import units
from controller.reports.job_ids import parse_state
from controller.reports.sacct import is_final
from controller.reports.text import clean, fit, gpu_list, ranges, width
from controller.reports.when import parse_time

NOW = datetime(2024, 5, 17, 10, 20, 30).timestamp()  # noqa: DTZ001  local time, as in sacct


@pytest.fixture(autouse=True)
def one_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_TIME_FORMAT", raising=False)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "00:00:00"),
        (0.4, "00:00:00"),
        (59.6, "00:01:00"),
        (3661, "01:01:01"),
        (86399, "23:59:59"),
        (86400, "1-00:00:00"),
        (100 * 86400 + 5, "100-00:00:05"),
        (-5, "00:00:00"),
        (None, ""),
        (float("nan"), ""),
        (float("inf"), ""),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert units.duration(seconds) == text


def test_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert units.moment(NOW) == "2024-05-17T10:20:30"
    assert units.moment(None) == "Unknown"
    assert units.moment(1e300) == "Unknown"
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%d.%m. %H:%M")
    assert units.moment(NOW) == "17.05. 10:20"


@pytest.mark.parametrize(
    ("count", "unit", "text"),
    [
        (0, "", "0"),
        (1023, "", "1023"),
        (1536, "", "1.5K"),
        (40 << 30, "", "40G"),
        (40 << 30, "M", "40960M"),
        (1 << 20, "G", "0G"),
        (None, "G", ""),
        (5 << 50, "", "5P"),
    ],
)
def test_sizes(count: int | None, unit: str, text: str) -> None:
    assert units.size(count, unit) == text


def test_steps_and_shares() -> None:
    assert [units.step(s) for s in (0.01234, 1.25, 12345.6, 0, None)] == [
        "0.0123s",
        "1.25s",
        "12346s",
        "",
        "",
    ]
    assert units.percent(2 / 3, 1) == "66.7%"
    assert units.percent(None, 1) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01-02", "2024-01-02T00:00:00"),
        ("2024-01-02T03:04", "2024-01-02T03:04:00"),
        ("2024-01-02T03:04:05", "2024-01-02T03:04:05"),
        ("0102", "2024-01-02T00:00:00"),
        ("010223", "2023-01-02T00:00:00"),
        ("1/2", "2024-01-02T00:00:00"),
        ("01/02/23", "2023-01-02T00:00:00"),
        ("01.02.2023", "2023-01-02T00:00:00"),
        ("01/02-13:14", "2024-01-02T13:14:00"),
        ("0531", "2024-05-31T00:00:00"),
        ("0601", "2023-06-01T00:00:00"),
        ("12/31-13:14", "2023-12-31T13:14:00"),
        ("01/02/23-13:14:15", "2023-01-02T13:14:15"),
        ("09:30", "2024-05-17T09:30:00"),
        ("9:30:15", "2024-05-17T09:30:15"),
        ("09:30PM", "2024-05-17T21:30:00"),
        ("12:00 am", "2024-05-17T00:00:00"),
        ("midnight", "2024-05-17T00:00:00"),
        ("Today", "2024-05-17T00:00:00"),
        ("noon", "2024-05-17T12:00:00"),
        ("fika", "2024-05-17T15:00:00"),
        ("teatime", "2024-05-17T16:00:00"),
        ("elevenses", "2024-05-17T11:00:00"),
        ("tomorrow", "2024-05-18T00:00:00"),
        ("uts1700000000", units.moment(1_700_000_000)),
        ("now", "2024-05-17T10:20:30"),
        ("now-30", "2024-05-17T10:20:00"),
        ("now-2hours", "2024-05-17T08:20:30"),
        ("now-1day", "2024-05-16T10:20:30"),
        ("now+1week", "2024-05-24T10:20:30"),
    ],
)
def test_times_in_all_forms_of_sacct(text: str, expected: str) -> None:
    assert units.moment(parse_time(text, NOW)) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "yesterday", "2024-13-01", "2024-02-30", "25:00", "10:60", "13:00PM", "1302", "now-", "nan"),
        *("-1", "uts", "uts999999", "1700000000", "now-1fortnight", "01/02.23", "99999-01-01"),
        *("now-999999999weeks", "١٢:٠٠x", "2024-01-01T1:2:3:4"),
    ],
)  # fmt: skip
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(GandivaError, match=r"is not a time; the forms are|out of range"):
        parse_time(text, NOW)


@given(st.text(max_size=30))
def test_any_text_is_a_time_or_one_clear_error(text: str) -> None:
    with contextlib.suppress(GandivaError):
        assert isinstance(parse_time(text, time.time()), float)


def test_states() -> None:
    assert parse_state("cd") == "COMPLETED"
    assert parse_state("Running") == "RUNNING"
    with pytest.raises(GandivaError, match=r"'WHAT' is not a job state.*TO \(TIMEOUT\)"):
        parse_state("WHAT")
    assert is_final("CANCELLED by 1000") and is_final("COMPLETED")
    assert not is_final("SUSPENDED") and not is_final("")


# -- widths ------------------------------------------------------------------------------------


@given(st.text(max_size=40), st.integers(0, 30), st.booleans())
def test_a_cell_is_always_exactly_as_wide_as_its_column(text: str, columns: int, left: bool) -> None:
    assert width(fit(clean(text), columns, left=left)) == columns


@pytest.mark.parametrize(
    ("text", "columns", "left", "shown"),
    [
        ("abc", 5, False, "  abc"),
        ("abc", 5, True, "abc  "),
        ("abcdef", 4, False, "abc+"),
        ("训练任务", 8, True, "训练任务"),
        ("训练任务", 6, True, "训练+ "),
        ("e\u0301tude", 5, True, "e\u0301tude"),
        ("abc", 1, False, "+"),
        ("abc", 0, False, ""),
    ],
)
def test_fit(text: str, columns: int, left: bool, shown: str) -> None:
    assert fit(text, columns, left=left) == shown


@given(st.text())
def test_nothing_that_controls_a_terminal_gets_through(text: str) -> None:
    shown = clean(text)
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert len(shown) == len(text)


def test_clean_keeps_ordinary_words() -> None:
    assert clean("étude 训练 🚀 a_b") == "étude 训练 🚀 a_b"
    assert clean("a\x1b[31mb\r\u202ec") == "a?[31mb??c"


@given(st.sets(st.integers(0, 30)))
def test_ranges_name_exactly_these_numbers(numbers: set[int]) -> None:
    named: set[int] = set()
    for piece in filter(None, ranges(numbers).split(",")):
        low, _, high = piece.partition("-")
        named |= set(range(int(low), int(high or low) + 1))
    assert named == numbers


def test_gpu_lists() -> None:
    assert gpu_list(["n1:0", "n1:1", "n1:3", "n2:0"]) == "n1:0-1,3 n2:0"
    assert gpu_list([]) == ""
    assert gpu_list(["junk"]) == "junk:0"
