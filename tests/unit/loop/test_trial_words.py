# SPDX-License-Identifier: GPL-2.0-or-later
"""What a user says of a job in its comment: read, bounded, and observed while the job runs."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster.raw import trial_word
from controller.cluster.replies import any_jobs
from controller.cluster.request import InvalidRequest
from controller.model import JobId, Search
from controller.observe.requests import parse_request, parse_trial
from tests.unit.loop.world import World, run


@pytest.mark.parametrize(
    ("comment", "word"),
    [
        ("", ""),
        ("gandiva-trial:exclusive", "gandiva-trial:exclusive"),
        (
            "ablation 3; gandiva-trial:priority=4,exclusive; cancelled: idle",
            "gandiva-trial:priority=4,exclusive",
        ),
        ("gandiva-trial:priority=2 gandiva-trial:priority=9", "gandiva-trial:priority=2"),
        ("not-gandiva-trial:exclusive", ""),
        ("gandiva-trial:EXCLUSIVE", ""),
        ("gandiva-trial:" + "x" * 65, ""),
        ("x" * 4096 + " gandiva-trial:exclusive", ""),
        ("\x00gandiva-trial:exclusive\n", ""),
    ],
)
def test_the_word_in_a_comment(comment: str, word: str) -> None:
    assert trial_word(comment) == word


@pytest.mark.parametrize(
    ("word", "search"),
    [
        ("priority=4", Search("lr", 4.0)),
        ("priority=0.25", Search("lr", 0.25)),
        ("exclusive", Search("lr", 1.0, True)),
        ("exclusive,priority=100", Search("lr", 100.0, True)),
    ],
)
def test_what_the_word_says(word: str, search: Search) -> None:
    assert parse_trial("gandiva-trial:" + word, "lr") == search


@pytest.mark.parametrize(
    "word",
    [
        "",
        "priority=0",
        "priority=0.001",
        "priority=101",
        "priority=1e2",
        "priority=-1",
        "priority=nan",
        "priority",
        "exclusive=1",
        "exclusive,exclusive",
        "priority=1,priority=2",
        "priority=1,",
        "weight=9",
        "priority=٣",
    ],
)
def test_any_other_word_is_refused(word: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_trial("gandiva-trial:" + word, "lr")


@given(st.text(max_size=300))
def test_junk_in_comments_is_refused_or_bounded(junk: str) -> None:
    word = trial_word(f"a gandiva-trial:{junk}")
    assert len(word) <= 78
    if word:
        try:
            search = parse_trial(word, "lr")
        except InvalidRequest as error:
            assert len(str(error)) < 300
        else:
            assert 0.01 <= search.priority <= 100


def test_the_search_is_part_of_the_request() -> None:
    asked = {"v": 1, "gpus": 1}
    assert parse_request("gandiva:" + json.dumps({**asked, "search": "lr"})).search == Search("lr")
    for name in ("", "a b", "x" * 65, 'x"'):
        with pytest.raises(InvalidRequest, match="search"):
            parse_request("gandiva:" + json.dumps({**asked, "search": name}))


def test_squeue_tells_the_comment() -> None:
    reply = {
        "jobs": [
            {"job_id": 7, "user_id": 1, "job_state": ["RUNNING"], "comment": "x gandiva-trial:exclusive"}
        ]
    }
    (record,) = any_jobs(json.dumps(reply), "job")
    assert record.trial == "gandiva-trial:exclusive"


def test_a_comment_counts_while_the_job_runs_and_for_jobs_of_a_search_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        trial, plain = world.submit(search="lr", pack=True), world.submit(pack=True)
        world.start()
        await asyncio.sleep(2)

        async def said(job_id: JobId, comment: str) -> Search | None:
            world.cluster.comment(job_id, comment)
            await asyncio.sleep(2)
            return world.cycles[-1].snapshot.jobs[job_id].request.search

        assert world.cycles[-1].snapshot.jobs[trial].request.search == Search("lr")
        assert await said(trial, "mine; gandiva-trial:priority=4") == Search("lr", 4.0)
        assert world.cycles[-1].snapshot.jobs[trial].request.may_pack
        assert await said(trial, "gandiva-trial:exclusive") == Search("lr", 1.0, True)
        assert not world.cycles[-1].snapshot.jobs[trial].request.may_pack
        with caplog.at_level(logging.WARNING):
            assert await said(trial, "gandiva-trial:priority=1000") == Search("lr")
        assert len([each for each in caplog.messages if "its comment does not count" in each]) == 1
        assert await said(plain, "gandiva-trial:exclusive") is None
        assert world.cycles[-1].snapshot.jobs[plain].request.may_pack
        await world.stop()

    run(scenario)
