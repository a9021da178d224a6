# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva report --html`: what is in the page. How browsers take it is in test_page_in_browser.py."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from controller.api.messages import GpuMessage, GpusMessage, NodeMessage
from controller.reports.html.page import (
    BINS,
    OTHERS,
    WAIT_EDGES,
    MeanOverTime,
    classes,
    page_data,
    quantile,
    render,
)

from .pages import HOSTILE, NOW, big, contents, hostile, job, piece


def in_use(data: dict[str, Any], name: str) -> dict[str, float]:
    """GPU seconds per label."""
    index = [one["name"] for one in data["colourings"]].index(name)
    width = (data["end"] - data["start"]) / BINS
    labels = data["colourings"][index]["labels"]
    return {label: sum(data["in_use"][index][n]) * width for n, label in enumerate(labels)}


# -- figures over time -------------------------------------------------------------------------


def test_means_over_time_add_up() -> None:
    series = MeanOverTime(0.0, 10.0, 5)
    series.add(1.0, 7.0, 2.0)
    series.add(-5.0, 0.5)
    series.add(9.5, 99.0)
    series.add(20.0, 30.0)
    series.add(7.2, 7.2)
    assert series.means() == [1.25, 2.0, 2.0, 1.0, 0.25]


def test_classes_of_waiting_times() -> None:
    assert classes([0.0, 9.9, 10.0, 59.0, 1e9]) == [2, 2, 0, 0, 0, 0, 0, 0, 1]
    assert len(classes([])) == len(WAIT_EDGES) + 1
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert quantile([], 0.5) is None


# -- the data ----------------------------------------------------------------------------------


def test_slices_become_blocks_with_indices() -> None:
    slices = [
        piece(1, 900, 600, "n2:0"),
        piece(2, 600, 300, "n10:0", "n2:0", reason="moved to free a server"),
        piece(1, 300, None, "n2:0"),
    ]
    data = page_data(contents([job(1), job(2, user="bob", gpus=2)], slices))
    assert data["gpus"] == [["n2", 0, ""], ["n10", 0, ""]], "n2 comes before n10"
    blocks = data["slices"]
    assert blocks["job"] == [0, 1, 0]
    assert [data["gangs"][gang] for gang in blocks["gang"]] == [(0,), (0, 1), (0,)]
    assert blocks["from"] == [1000, 4000, 7000] and blocks["to"] == [4000, 7000, 10000]
    assert [data["reasons"][why] if why >= 0 else "" for why in blocks["why"]] == [
        "its slice is over", "moved to free a server", "",
    ]  # fmt: skip


def test_gpus_in_use_are_counted_by_user_size_and_type() -> None:
    live = GpusMessage(
        time=NOW,
        nodes=[
            NodeMessage(name="n1", available=True, gpus=[GpuMessage(ordinal=n, model="a100") for n in (0, 1)])
        ],
    )
    slices = [piece(1, 900, 600, "n1:0"), piece(2, 500, None, "n1:0", "n1:1")]
    data = page_data(contents([job(1), job(2, user="bob", gpus=2)], slices, gpus=live))
    assert in_use(data, "user") == pytest.approx({"alice": 300, "bob": 1000}, rel=0.01)
    assert in_use(data, "GPUs of the job") == pytest.approx({"1": 300, "2": 1000}, rel=0.01)
    assert in_use(data, "GPU type") == pytest.approx({"a100": 1300}, rel=0.01)
    assert data["tiles"][0] == ("GPUs in use", "1.3 of 2", "65.0% on average")


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_the_page_knows_when_the_clocks_are_changed() -> None:
    change = datetime(2025, 10, 26, 1, tzinfo=timezone.utc).timestamp()
    begin, end = change - 86400 * 300, change + 86400 * 10
    early = job(1, submit_time=begin, start_time=begin)
    data = page_data(contents([early], [], start=change - 3600, end=end, now=end))
    spring = datetime(2025, 3, 30, 1, tzinfo=timezone.utc).timestamp()
    assert data["zones"] == [
        [round((begin - change + 3600) * 10), 3600],
        [round((spring - change + 3600) * 10), 7200],
        [36000, 3600],
    ]
    assert page_data(contents([job(1)], []))["zones"] == [[0, 7200]]


def test_many_users_share_the_last_colour() -> None:
    jobs = [job(n, user=f"u{n}", gpu_seconds=100.0 - n) for n in range(20)]
    (users, *_) = page_data(contents(jobs, []))["colourings"]
    assert users["labels"] == [f"u{n}" for n in range(8)] + [OTHERS]
    assert users["of"][:9] == [0, 1, 2, 3, 4, 5, 6, 7, 8] and users["of"][19] == 8


def test_waiting_for_the_start_and_for_a_turn() -> None:
    queued = job(3, state="PENDING", start_time=None, submit_time=NOW - 400)
    data = page_data(contents([job(1), queued], [piece(1, 600, 300, "n1:0")]))
    width = 1000 / BINS
    assert sum(data["waiting"]["queue"]) * width == pytest.approx(60 + 400, rel=0.01)
    assert sum(data["waiting"]["turn"]) * width == pytest.approx(300, rel=0.01)
    assert sum(data["waiting"]["started"]) == 1 and sum(data["waiting"]["waits_on"]) == 1


def test_an_empty_journal_and_slices_of_jobs_that_were_not_asked_for() -> None:
    data = page_data(contents([], [piece(1, 900, 600, "n1:0")]))
    assert (data["gpus"], data["jobs"], data["slices"]["job"]) == ([], [], [])
    assert data["tiles"][4] == ("Wait for the start", "-", "no job has started")


# -- the page ----------------------------------------------------------------------------------


def embedded(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return dict(json.loads(text))


def test_what_users_wrote_is_data_and_nothing_else() -> None:
    page = render(hostile())
    data = embedded(page)
    assert [one[1] for one in data["jobs"]] == list(HOSTILE)
    assert data["notices"] == list(HOSTILE)
    harmless = render(contents([job(1)], []))
    # Every tag of the page is its own: markup does not grow with what users write.
    assert len(re.findall("<[a-zA-Z!/]", page)) == len(re.findall("<[a-zA-Z!/]", harmless))


def test_the_policy_names_exactly_the_scripts_and_styles_of_the_page() -> None:
    page = render(contents([job(1)], []))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    script = re.findall(r"<script>(.*?)</script>", page, re.S)
    style = re.findall(r"<style>(.*?)</style>", page, re.S)
    for kind, found in (("script-src", script), ("style-src", style)):
        (text,) = found
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = render(contents([job(1)], []))
    allowed = {"http://www.w3.org/2000/svg"}  # a name, not an address that is fetched
    assert set(re.findall(r"https?://[^\s\"']+", page)) <= allowed
    assert not re.search(r"<(link|img|iframe)\b|\bsrc=|@import|url\(", page)


def test_a_day_of_512_gpus_is_a_file_of_a_few_megabytes() -> None:
    small = len(render(big(nodes=8, slices=4_000)))
    smaller = len(render(big(nodes=8, slices=2_000)))
    assert (small - smaller) / 2_000 < 40, "bytes per slice: 100,000 of them must stay below 4 MB"


def test_every_part_of_the_page_is_installed_with_the_package() -> None:
    root = Path(__file__).resolve().parents[3]
    parts = {
        file.name for file in (root / "controller/reports/html").iterdir() if file.suffix not in (".py", "")
    }
    listed = re.search(r'"controller\.reports\.html" = (\[.*\])', (root / "pyproject.toml").read_text())
    assert listed is not None and set(json.loads(listed[1])) == parts
