# SPDX-License-Identifier: GPL-2.0-or-later
"""The page of `gandiva report --html` in a real browser, from made-up data."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.reports.html.page import Contents, render
from tests.unit.reports.browser import Browser, find_chromium
from tests.unit.reports.pages import HOSTILE, big, contents, hostile, job, piece

pytestmark = pytest.mark.processes
CTRL = 2
FRAME = "new Promise(done => requestAnimationFrame(() => setTimeout(done, 20)))"
"""When the page has drawn itself again."""


def write(shown: Contents, path: Path) -> None:
    path.write_text(render(shown), encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        find_chromium()
    except RuntimeError as error:
        pytest.skip(str(error))
    with Browser() as browser:
        yield browser


@pytest.fixture
def two_jobs(tmp_path: Path, browser: Browser) -> Browser:
    """Two jobs in turn on one GPU, then one on another node."""
    jobs = [
        job(7, name="resnet", step_seconds=0.5, suspends=2),
        job(12, name="bert", user="bob", weight=2.0, state="SUSPENDED", suspends=1),
    ]
    slices = [
        piece(7, 1000, 750, "n1:0"),
        piece(12, 749, 500, "n1:0", reason="job 7 has a higher weight"),
        piece(7, 499, 250, "n1:0"),
        piece(12, 200, None, "n2:1"),
    ]
    write(contents(jobs, slices), tmp_path / "r.html")
    browser.events.clear()
    browser.open(tmp_path / "r.html")
    return browser


def test_each_time_is_in_its_own_offset(
    tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an hour before the clocks go back to three days later."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        change = 1_761_440_400.0
        late = job(7, submit_time=change + 36000, start_time=change + 36000)
        start, end = change - 3600, change + 3 * 86400
        write(contents([late], [], start=start, end=end, now=end), tmp_path / "r.html")
    finally:
        monkeypatch.undo()
        time.tzset()
    browser.open(tmp_path / "r.html")
    span = text(browser, "#span")
    assert span.startswith("2025-10-26 02:00:00 to 2025-10-29 02:00:00 (UTC+02:00, then UTC+01:00), made")
    assert "10-26 12:00:00" in text(browser, "#body"), "submitted"


def text(browser: Browser, selector: str) -> str:
    return str(browser.run(f"document.querySelector({json.dumps(selector)}).innerText"))


def point(browser: Browser, part: float, row: int = 0) -> tuple[float, float]:
    """A place on the timeline: part of its time (0 to 1), middle of a row (rows of one node each)."""
    box: dict[str, Any] = browser.run(
        "(() => { document.querySelector('#time').scrollIntoView({block: 'center'});"
        " return document.querySelector('#time').getBoundingClientRect().toJSON(); })()"
    )
    gutter = min(150, 2 * 7 + 34)
    return box["x"] + gutter + part * (box["width"] - gutter - 2), box["y"] + 22 + 4 + row * 30 + 12


def table(browser: Browser, column: int) -> list[str]:
    cells = f"[...document.querySelectorAll('#body tr')].map(row => row.children[{column}].innerText)"
    return list(browser.run(cells))


def test_a_block_says_who_was_there_when_and_why_it_ended(two_jobs: Browser) -> None:
    two_jobs.mouse("mouseMoved", *point(two_jobs, 0.4))
    words = text(two_jobs, "#tip")
    assert "Job 12 bert" in words and "bob, SUSPENDED, weight 2, 1 GPU" in words
    assert (
        "It ended there: job 7 has a higher weight" in words
        and "Then here: job 7 (alice), after 1.0 s" in words
    )
    two_jobs.mouse("mouseMoved", *point(two_jobs, 0.1))
    assert "about 500 mini-batches here" in text(two_jobs, "#tip")
    two_jobs.mouse("mouseMoved", *point(two_jobs, 0.95, row=1))
    assert "It is still there." in text(two_jobs, "#tip")
    two_jobs.mouse("mouseMoved", *point(two_jobs, 0.4, row=1))
    assert two_jobs.run("document.querySelector('#tip').hidden")


def test_keys_go_from_block_to_block_and_tell_screen_readers(two_jobs: Browser) -> None:
    two_jobs.run("document.querySelector('#time').focus()")
    two_jobs.key("ArrowRight")
    assert text(two_jobs, "#told").startswith("Job 7 resnet")
    two_jobs.key("ArrowRight")
    assert text(two_jobs, "#told").startswith("Job 12 bert. bob")
    two_jobs.key("ArrowDown")
    assert "n2:1" in text(two_jobs, "#told")
    two_jobs.key("Enter")
    assert table(two_jobs, 0) == ["12"] and text(two_jobs, "#shown") == "1 of 2 jobs"
    two_jobs.key("Escape")
    assert table(two_jobs, 0) == ["7", "12"] and two_jobs.troubles() == []


def test_zooming_and_moving(two_jobs: Browser) -> None:
    x, y = point(two_jobs, 0.25)
    for _ in range(4):
        two_jobs.mouse("mouseWheel", x, y, deltaX=0, deltaY=-200, modifiers=CTRL)
    two_jobs.mouse("mouseMoved", *point(two_jobs, 0.9))
    assert "Job 12" in text(two_jobs, "#tip"), (
        "around 0.25 the second slice begins, and now fills what is right of it"
    )
    two_jobs.run("document.querySelector('#time').focus()")
    two_jobs.key("0")
    two_jobs.run(FRAME)
    two_jobs.mouse("mouseMoved", *point(two_jobs, 0.9))
    assert two_jobs.run("document.querySelector('#tip').hidden"), (
        "the whole time again: nobody was on n1:0 then"
    )
    two_jobs.key("+")
    two_jobs.key("+")
    start = point(two_jobs, 0.8)
    two_jobs.mouse("mousePressed", *start)
    two_jobs.mouse("mouseMoved", start[0] - 400, start[1], buttons=1)
    two_jobs.mouse("mouseReleased", start[0] - 400, start[1])
    two_jobs.mouse("mouseMoved", *point(two_jobs, 0.95, row=1))
    assert "Job 12" in text(two_jobs, "#tip") and table(two_jobs, 0) == ["7", "12"], (
        "dragging is not clicking"
    )


def test_filters_and_order_of_the_table(two_jobs: Browser) -> None:
    two_jobs.run("document.querySelector('#find').focus()")
    for letter in "bert":
        two_jobs.key(letter)
    assert table(two_jobs, 1) == ["bert"]
    two_jobs.run(
        "(e => { e.value = ''; e.dispatchEvent(new Event('input')) })(document.querySelector('#find'))"
    )
    two_jobs.run(
        "(e => { e.value = 'alice'; e.dispatchEvent(new Event('input')) })(document.querySelector('#user'))"
    )
    assert table(two_jobs, 2) == ["alice"]
    two_jobs.run(
        "(e => { e.value = ''; e.dispatchEvent(new Event('input')) })(document.querySelector('#user'))"
    )
    two_jobs.run("document.querySelectorAll('#head button')[5].click()")
    assert table(two_jobs, 5) == ["2", "1"], "numbers begin with the greatest"
    two_jobs.run("document.querySelectorAll('#head button')[5].click()")
    assert table(two_jobs, 5) == ["1", "2"]
    assert two_jobs.run("document.querySelectorAll('#head th')[5].ariaSort") == "ascending"


def test_names_that_are_markup_stay_text(tmp_path: Path, browser: Browser) -> None:
    write(contents([], []), tmp_path / "empty.html")
    write(hostile(), tmp_path / "r.html")
    count = "[...document.querySelectorAll('script, img, iframe, object, embed, [onload], [onerror]')].length"
    browser.open(tmp_path / "empty.html")
    own = browser.run(count)
    browser.events.clear()
    browser.open(tmp_path / "r.html")
    assert browser.run(
        "[...document.querySelectorAll('#body td:nth-child(2)')].map(e => e.textContent)"
    ) == list(HOSTILE)
    for row in range(len(HOSTILE)):
        browser.mouse("mouseMoved", *point(browser, 0.02 + 0.1 * row, row))
    browser.run("document.querySelector('#time').focus()")
    seen = set()
    for _ in HOSTILE:
        browser.key("ArrowDown")
        seen.add(text(browser, "#told"))
    assert len(seen) == len(HOSTILE)
    for select in ("#colour", "#user", "#state"):
        each = "for (const o of e.options) { e.value = o.value; e.dispatchEvent(new Event('input')) }"
        browser.run(f"(e => {{ {each} }})(document.querySelector('{select}'))")
    browser.run(FRAME)
    assert browser.run("document.title") == "Gandiva report"
    assert browser.run(count) == own
    assert browser.troubles() == []


def test_pages_with_nothing_and_with_one_job(tmp_path: Path, browser: Browser) -> None:
    for name, page in (("none", contents([], [])), ("one", contents([job(1)], [piece(1, 5, None, "n1:0")]))):
        browser.events.clear()
        write(page, tmp_path / f"{name}.html")
        browser.open(tmp_path / f"{name}.html", dark=True)
        browser.run("document.querySelector('#time').focus()")
        for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "Enter", "+", "-", "0", "r", "r", "r", "Escape"):
            browser.key(key)
        assert browser.troubles() == [], name
        assert len(table(browser, 0)) == (name == "one")


@pytest.mark.nightly
def test_a_day_of_512_gpus_with_100000_slices(tmp_path: Path, browser: Browser) -> None:
    path = tmp_path / "big.html"
    write(big(), path)
    size = path.stat().st_size
    assert size < 5_000_000
    browser.events.clear()
    drawn_seconds = browser.open(path)
    # Zooming draws everything again; ten times, each in a frame of its own.
    begin = time.monotonic()
    browser.run(
        "(async () => { for (let n = 0; n < 10; n++) { document.querySelector('#in').click();"
        " await new Promise(done => requestAnimationFrame(() => setTimeout(done))); } })()"
    )
    each = (time.monotonic() - begin) / 10
    print(f"\n{size / 1e6:.1f} MB, drawn in {drawn_seconds:.2f} s, again in {1000 * each:.0f} ms")
    x, y = point(browser, 0.5)
    browser.mouse("mouseMoved", x, y)
    assert browser.troubles() == []
    # However many slices there are, a picture has no more rectangles than its rows have pixels.
    browser.run("document.querySelector('#all').click()")
    browser.run(
        "window.rectangles = 0; (p => { const was = p.fillRect; p.fillRect = function (...a)"
        " { window.rectangles++; return was.apply(this, a); }; })(CanvasRenderingContext2D.prototype)"
    )
    browser.run(f"document.querySelector('#rows').click(), {FRAME}")
    rectangles = browser.run("window.rectangles")
    assert 10_000 < rectangles < 512 * 1280 * 1.5
