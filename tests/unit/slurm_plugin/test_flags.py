# SPDX-License-Identifier: GPL-2.0-or-later
"""The job_submit module: flags as a hostile client may send them, and forged requests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.draws import WITH_FIXTURES, draws
from tests.unit.slurm_plugin.standin import Slurmctld

NAMES = ("gandiva_model", "gandiva_search")
"""Flags whose value is a name."""

JOB: dict[str, Any] = {"script": "#!/bin/sh\n", "tres_per_node": "gres/gpu:1", "partition": "both"}


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *[("gandiva_weight", value) for value in ("0.1", "100", "1", "007", "99.99", "0.10")],
        *[("gandiva_gpus", value) for value in ("1-1", "1-4096")],
        *[("gandiva_pack", value) for value in ("yes", "no")],
        *[("gandiva_gpu_types", value) for value in ("a100", "h100,a100")],
        *[(flag, value) for flag in NAMES for value in ("a", "x" * 64, "GPT-2_v1.0+x")],
        ("gandiva", ""),
        ("gandiva", "(null)"),
    ],
)
def test_allowed_values(slurmctld: Slurmctld, flag: str, value: str) -> None:
    answer = slurmctld.submit({flag: value}, **JOB)
    assert answer.rc == 0, answer.said
    assert 0.1 <= answer.request["weight"] <= 100


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *[
            ("gandiva_weight", value)
            for value in (
                "",
                "0",
                "0.09",
                "100.1",
                "101",
                "-1",
                "1e1",
                "0x1",
                "nan",
                "inf",
                "1,5",
                "1.",
                ".5",
                " 1",
            )
        ],
        *[("gandiva_weight", value) for value in ("1 ", "1.0000000000000", "٣", '1,"x":1', "(null)")],
        *[
            ("gandiva_gpus", value)
            for value in ("", "2", "0-1", "2-1", "1-4097", "1-", "-1", "1-2-3", "1-2x", "01-2")
        ],
        *[("gandiva_pack", value) for value in ("", "true", "YES", "1")],
        *[("gandiva_migrate", value) for value in ("", "maybe")],
        *[("gandiva_suspend", value) for value in ("", "Cooperative", "none")],
        *[
            ("gandiva_gpu_types", value)
            for value in ("", "v100", "a100,", ",a100", "a100,,h100", "a100,a100", "a100 ")
        ],
        *[(flag, value) for flag in NAMES for value in ("", "x" * 65, "a b", 'x"', "x\n", "x/y", "é")],
        ("gandiva_surprise", "1"),
        ("gandiva_weight_x", "1"),
    ],
)
def test_every_other_value_is_refused_with_one_message(slurmctld: Slurmctld, flag: str, value: str) -> None:
    answer = slurmctld.submit({flag: value}, **JOB)
    assert answer.rc != 0 and not answer.raised
    assert len(answer.said) == 1
    assert answer.said[0].startswith("gandiva: ")
    assert "--" + flag.replace("_", "-") in answer.said[0]
    assert answer.fields == {}


def test_contradictions(slurmctld: Slurmctld) -> None:
    answer = slurmctld.submit({"no_gandiva": "", "gandiva_weight": "2", "gandiva_pack": "no"}, **JOB)
    assert answer.said == ["gandiva: --no-gandiva contradicts --gandiva-pack: give one of them"]
    twice = ["_SLURM_SPANK_OPTION_gandiva_gandiva_weight=1", "_SLURM_SPANK_OPTION_gandiva_gandiva_weight=2"]
    assert slurmctld.submit(twice, **JOB).said == ["gandiva: --gandiva-weight is given twice"]


def test_other_plugins_options_are_none_of_ours(slurmctld: Slurmctld) -> None:
    answer = slurmctld.submit(["_SLURM_SPANK_OPTION_pyxis_container_image=x", "FOO=bar", "odd"], **JOB)
    assert answer.rc == 0 and answer.fields == {}


def test_a_sites_limit_of_the_weight(make_slurmctld: Callable[..., Slurmctld]) -> None:
    """A weight above the limit is taken and counts less, which the user is told."""
    site = make_slurmctld(
        max_weight=4, max_weight_by_account={"ml": 2, "vip": 20}, max_weight_by_qos={"urgent": 10}
    )

    def said(weight: str, **job: Any) -> str:
        answer = site.submit({"gandiva_weight": weight}, **JOB, **job)
        assert answer.rc == 0 and answer.request["weight"] == float(weight)
        return "; ".join(answer.said)

    assert said("4") == said("20", account="vip") == said("10", account="ml", qos="urgent") == ""
    assert said("4.5") == "gandiva: --gandiva-weight=4.5 counts as 4, the limit of this site"
    assert said("4.5", account="ML") == "gandiva: --gandiva-weight=4.5 counts as 2, the limit of account ML"
    assert said("3", default_account="ml").endswith("counts as 2, the limit of account ml")
    assert said("11", account="vip", qos="urgent").endswith("counts as 10, the limit of QOS urgent")
    assert said("11", account="vip", default_qos="urgent").endswith("counts as 10, the limit of QOS urgent")


@pytest.mark.parametrize("uid", [0, 1000])
def test_forged_requests_are_dropped(slurmctld: Slurmctld, uid: int) -> None:
    forged = 'gandiva:{"v":1,"gpus_per_node":64}'
    answer = slurmctld.submit(uid=uid, admin_comment=forged, **JOB)
    assert answer.rc == 0
    assert answer.fields == {"admin_comment": ""}
    assert answer.logged == [
        f"info: gandiva: dropped a forged request in the admin_comment of a job of uid {uid}"
    ]
    written = slurmctld.submit({"gandiva": ""}, uid=uid, admin_comment=forged, **JOB)
    assert written.request["gpus_per_node"] == 1
    assert slurmctld.submit(admin_comment="mine", **JOB).fields == {}


HOSTILE = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=80)
JUNK = st.lists(
    st.sampled_from(
        ["gres/gpu", "gpu", "gres:gpu", ":", "=", ",", "a100", "a100_0", "1", "2", "9", "k", "shard", "-"]
    ),
    max_size=8,
).map("".join)
ITEMS = st.sampled_from(
    [
        "gres/gpu:1",
        "gres/gpu:2",
        "gpu:4",
        "gres/gpu:a100:2",
        "gres/gpu=1",
        "gres/gpu",
        "gres/shard:1",
        "cpu:2",
        "x:1",
    ]
)
TRES = st.one_of(ITEMS, ITEMS, ITEMS, st.lists(ITEMS, max_size=3).map(",".join), JUNK, HOSTILE)
VALUES = {
    "gandiva": ["", "(null)"],
    "no_gandiva": ["(null)"],
    "gandiva_weight": ["1", "0.5", "100"],
    "gandiva_gpus": ["1-8", "1-2"],
    "gandiva_model": ["m"],
    "gandiva_search": ["lr"],
    "gandiva_gpu_types": ["a100", "h100,a100"],
    "gandiva_suspend": ["requeue", "transparent"],
}
OPTIONS = st.lists(
    st.sampled_from([(name, value) for name, values in VALUES.items() for value in values])
    | st.tuples(st.sampled_from([*VALUES, "x"]), HOSTILE),
    max_size=3,
).map(dict)
TEXTS = st.fixed_dictionaries(
    {},
    optional={
        "tres_per_job": TRES,
        "tres_per_node": TRES,
        "tres_per_task": TRES,
        "cpus_per_tres": st.sampled_from(["gres/gpu:2", "gres/gpu:0", "cpu:1"]),
        "mem_per_tres": st.sampled_from(["gres/gpu:1024", "x"]),
        "features": st.one_of(st.sampled_from(["gandiva_a100", "fat"]), HOSTILE),
        "partition": st.one_of(st.sampled_from(["gpu", "both", "gpu,both", "unknown"]), HOSTILE),
        "req_nodes": st.one_of(st.sampled_from(["n1", "n[1-2]"]), HOSTILE),
        "admin_comment": st.one_of(st.just("gandiva:{}"), HOSTILE),
        "tres_bind": st.sampled_from(["gres/gpu:per_task:1", "gres/gpu:none"]),
    },
)
NUMBER = st.sampled_from([0, 1, 1, 2, 2, 3, 7, 65535, 2**31, 2**32 - 1, 2**32 - 2])
NUMBER_FIELDS = [
    "min_nodes",
    "max_nodes",
    "num_tasks",
    "ntasks_per_node",
    "cpus_per_task",
    "shared",
    "priority",
]
NUMBER_FIELDS += ["requeue", "begin_time", "het_job_offset", "ntasks_per_tres", "immediate", "pn_min_memory"]
NUMBERS = st.dictionaries(st.sampled_from(NUMBER_FIELDS), NUMBER, max_size=2)


@settings(max_examples=draws(150, 5000), suppress_health_check=WITH_FIXTURES)
@example(options={}, texts={"tres_per_job": ":shard:"}, numbers={}, batch=False, uid=1000)
@example(options={}, texts={"tres_per_job": "0shard:1"}, numbers={}, batch=False, uid=1000)
@given(options=OPTIONS, texts=TEXTS, numbers=NUMBERS, batch=st.booleans(), uid=st.sampled_from([0, 1000]))
def test_whatever_comes_nothing_is_raised_and_every_record_is_valid(
    slurmctld: Slurmctld,
    options: dict[str, str],
    texts: dict[str, str],
    numbers: dict[str, int],
    batch: bool,
    uid: int,
) -> None:
    job: dict[str, Any] = {**texts, **numbers, **({"script": "#!/bin/sh"} if batch else {})}
    answer = slurmctld.submit(options, uid, **job)
    assert not answer.raised
    assert not any("internal error" in line for line in answer.logged), answer.logged
    comment = answer.fields.get("admin_comment", "")
    if answer.rc != 0:
        assert len(answer.said) == 1
        assert all(" " <= character <= "~" for character in answer.said[0])
        assert not set(answer.fields) - {"admin_comment"}
        return
    if comment:
        assert set(options) & set(VALUES) and answer.fields["priority"] == 0
        request = json.loads(comment.removeprefix("gandiva:"))
        assert next(iter(request)) == "v" and list(request)[-1] == "site"
        assert "\n" not in comment and " " not in comment and len(comment) <= 1024
        # What was worked out is possible: the biggest of these partitions has 8 and 16 GPUs.
        per_node, nodes, gpus = request["gpus_per_node"], request["nodes"], request.get("gpus")
        assert (gpus is None) != (per_node is None)
        if texts.get("partition") in (None, "gpu"):
            assert (gpus or per_node * nodes) <= 8
    for name in ("tres_per_job", "tres_per_node", "tres_per_task"):
        accepted = answer.fields.get(name, texts.get(name, ""))
        # None of something is not a request for it.
        some = re.sub(r"shard(:[^:=,]+)?[:=]0+[kmgtp]?(?=,|$)", "", accepted, flags=re.IGNORECASE)
        # (0shard is the name of something else, which Slurm does not know.)
        shards = re.compile(r"(?<![0-9A-Za-z_])shard:")
        assert not (shards.search(some) and shards.search(texts.get(name, "")))
