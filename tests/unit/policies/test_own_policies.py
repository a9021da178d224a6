# SPDX-License-Identifier: GPL-2.0-or-later
"""A site's own parts, as docs/own-policies.md prints them: simulated, in the daemon's settings, and wrong."""

from __future__ import annotations

import asyncio
import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.cli.main import main
from controller.errors import SettingsError
from controller.model import Profile, Reason, reason_of
from controller.policies.assemble import MOVES, make_policy
from controller.policies.presets import PRESETS
from controller.policies.protocol import PolicyError
from controller.policies.settings import MOVE_NAMES
from controller.policies.site import GROUP
from controller.settings.loading import parse_settings
from controller.settings.policies import POLICIES, PolicySettings
from controller.simulation.configure import configure
from tests.unit.loop.world import World, run
from tests.unit.policies.ideal import GIB, Ideal, cluster, make_job
from tests.unit.policies.test_pack import packable

PAGE = (Path(__file__).resolve().parents[3] / "docs/own-policies.md").read_text(encoding="utf-8")
ORDER, MOVE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
JOBS = """job_id,submit_seconds,duration_seconds,gpus,account,user,pack
long,0,9000,2,research,ann,yes
class,0,600,2,classes,bob,no
late,3700,600,2,research,cid,no
"""
PAIR = """job_id,submit_seconds,duration_seconds,gpus,user,pack
first,0,9000,2,ann,yes
second,0,9000,2,ann,yes
"""


@pytest.fixture(name="site")
def site_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the page's file and a trace, where commands run."""
    (tmp_path / "mine.py").write_text(ORDER + "\n\n" + MOVE)
    (tmp_path / "jobs.csv").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("gandiva_site_")]:
        del sys.modules[name]


def simulate(*options: str) -> dict[str, dict[str, str]]:
    """What became of each job."""
    trace = ["--trace", "jobs.csv", "--trace-format", "native"]
    where = ["--cluster", "a100:2", "--gpus-per-node", "2", "--jobs-out", "out.csv"]
    assert main(["simulate", *trace, *where, *options]) == 0
    with Path("out.csv").open() as file:
        return {row["job_id"]: row for row in csv.DictReader(file)}


@pytest.mark.usefixtures("site")
def test_the_order_is_simulated_as_printed() -> None:
    found = simulate("--policy", "./mine.py:ShortFirst")
    # At 3,600 s the long job has used its two GPU-hours. Research comes before classes all the same.
    assert float(found["late"]["start_seconds"]) == pytest.approx(3700, abs=30)
    assert float(found["class"]["start_seconds"]) > float(found["long"]["end_seconds"])
    fifo = simulate("--policy", "fifo")
    assert float(fifo["late"]["start_seconds"]) > 9000


def test_the_order_and_its_settings_have_forty_lines() -> None:
    assert len(ORDER.splitlines()) <= 40


@pytest.mark.usefixtures("site")
def test_the_settings_of_the_order_count() -> None:
    first = simulate("--policy", "./mine.py:ShortFirst", "--set", "last_accounts=[]")
    # The class came before the late job, and now waits for the long one only.
    assert float(first["class"]["start_seconds"]) == pytest.approx(3600, abs=60)
    never = simulate("--policy", "./mine.py:ShortFirst", "--set", "short_gpu_hours=100")
    assert float(never["late"]["start_seconds"]) > 9000


def test_names_for_own_parts(site: Path) -> None:
    (site / "settings").mkdir()
    (site / "mine.py").rename(site / "settings/mine.py")
    parts = '[policy.parts]\nshort = "mine.py:ShortFirst"\npack = "mine.py:OwnPairs"\n'
    (site / "settings/gandiva.toml").write_text(f"{parts}[policy.own]\nlast_accounts = []\n")
    options = ("--settings", "settings/gandiva.toml", "--policy", "short")
    row = simulate(*options, "--set", "short_gpu_hours=100")["late"]
    assert float(row["start_seconds"]) > 9000
    changes = ['policy.moves=["pack"]', "short_gpu_hours=1"]
    settings = configure(site / "settings/gandiva.toml", "short", changes).policy
    own = {"last_accounts": [], "short_gpu_hours": 1}
    assert settings.own == own and settings.moves == [f"{site}/settings/mine.py:OwnPairs"]
    make_policy(settings)
    for wrong in ('moves = [["pack"]]\n[policy.parts]', "parts = 5"):
        (site / "wrong.toml").write_text(f"[policy]\n{wrong}\n")
        with pytest.raises(SettingsError, match=r"wrong.toml: policy"):
            configure(site / "wrong.toml", None, ["policy.backfill=true"])
    with pytest.raises(SettingsError, match=r'policy.parts.x = "fifo": must be a class of your own'):
        parse_settings('[policy.parts]\nx = "fifo"')


def test_the_move_is_simulated_as_printed(site: Path) -> None:
    (site / "jobs.csv").write_text(PAIR)
    option = 'policy.moves=["./mine.py:OwnPairs"]'
    alone = simulate("--policy", "./mine.py:ShortFirst")
    together = simulate("--policy", "./mine.py:ShortFirst", "--set", option)
    # Both have used their two GPU-hours by then, and the second has been measured.
    assert float(alone["second"]["start_seconds"]) == pytest.approx(3600, abs=60)
    assert float(together["first"]["end_seconds"]) > float(alone["first"]["end_seconds"])


@pytest.mark.usefixtures("site")
def test_the_move_packs_jobs_of_one_user_only() -> None:
    settings = PolicySettings(name="fifo", moves=["./mine.py:OwnPairs"])
    jobs = [packable(1, 10), packable(2, 10), packable(3, 10)]
    jobs[1] = make_job(2, 1, 10.0, user="bob", request=jobs[1].request)
    c = Ideal(lambda: make_policy(settings), cluster(1, 1), jobs)
    c.profiles = {job.id: Profile(peak_memory_bytes=GIB) for job in jobs}
    c.own_words = True
    c.step()
    assert c.running() == {1, 3}
    assert c.reasons[jobs[2].id] == "joins job 1 of the same user on its GPUs"
    assert reason_of(c.reasons[jobs[2].id]) is Reason.OTHER, "plain text"


def printed_settings(first_line: str) -> str:
    """The settings on the page that begin so."""
    blocks = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    return str(next(block for block in blocks if first_line in block))


def test_the_daemons_settings_as_printed(site: Path) -> None:
    for line in ("mine.py:ShortFirst", "mine.py:OwnPairs"):
        text = printed_settings(line).replace("/etc/gandiva/mine.py", str(site / "mine.py"))
        make_policy(parse_settings(text).policy)


def test_an_entry_point_as_printed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = re.search(r'entry-points\."(.*)"\]\n(\S+) = "(.*)"', PAGE)
    assert printed is not None and printed[1] == GROUP
    package, info = site / "our_scheduling", site / "our_scheduling-1.dist-info"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "orders.py").write_text(ORDER)
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: our_scheduling\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{printed[2]} = {printed[3]}\n")
    monkeypatch.syspath_prepend(str(site))
    by_name = simulate("--policy", "short-first")
    assert by_name == simulate("--policy", "./mine.py:ShortFirst")


# -- what is wrong ------------------------------------------------------------------------------------


def refused(name: str, **settings: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        make_policy(PolicySettings(name=name, **settings))
    return str(caught.value)


def test_names_that_are_neither() -> None:
    allowed = 'or a class of your own: "FILE.py:CLASS", or an entry point of the group gandiva.policies'
    for key, known in (('name = "las"', '"tiresias-las"'), ('moves = ["las"]', '"pack"')):
        with pytest.raises(SettingsError, match="must be one of") as caught:
            parse_settings(f"[policy]\n{key}")
        assert "policy." in str(caught.value) and known in str(caught.value) and allowed in str(caught.value)


def test_the_names_of_the_settings_are_those_of_the_parts() -> None:
    assert POLICIES.keys() == PRESETS.keys()
    assert set(MOVE_NAMES) == MOVES.keys()


def test_files_that_cannot_be_used(site: Path) -> None:
    mine = site / "mine.py"
    assert refused("./none.py:A") == f"{site / 'none.py'}: there is no such Python file"
    classes = "its classes: OwnPairs, ShortFirst"
    assert refused("./mine.py:ShortFrist") == f"{mine}: no class 'ShortFrist' in it; {classes}"
    own = refused("./mine.py:ShortFirst", own={"short_gpu_hours": "2"})
    assert own.startswith("policy.own.short_gpu_hours: must be a valid number") and "ShortFirst" in own
    own = refused("./mine.py:ShortFirst", own={"hours": 2})
    known = "there are: last_accounts, short_gpu_hours"
    assert own == f"policy.own.hours: no part in use has this setting; {known}"
    make_policy(PolicySettings(name="fifo", own={"hours": 2}))
    (site / "odd.py").write_text(
        "from pydantic import BaseModel, model_validator\n"
        "class A:\n    class Settings(BaseModel):\n        pair: tuple[int, int] = (1, 2)\n"
        "        @model_validator(mode='after')\n        def rise(self):\n"
        "            if self.pair[0] > self.pair[1]: raise ValueError('pair must rise')\n"
        "            return self\n"
        "    def __init__(self, settings): pass\n    def plan(self, snapshot, memory): ...\n"
        "class B:\n    Settings = dict\n    def plan(self, snapshot, memory): ...\n"
    )
    make_policy(PolicySettings(name="./odd.py:A", own={"pair": [1, 3]}))
    assert refused("./odd.py:A", own={"pair": [3, 1]}) == "policy.own: pair must rise (of ./odd.py:A)"
    assert refused("./odd.py:B") == f"{site / 'odd.py'}: B.Settings must be a model of pydantic (BaseModel)"
    assert refused("~nobody-here/x.py:A").endswith("there is no such Python file")
    both = "neither an Order nor a class with a method plan(snapshot, memory)"
    assert refused("./mine.py:OwnPairs") == f"./mine.py:OwnPairs: {both}"
    moves = "a move is a class with a method propose(snapshot, draft)"
    assert refused("fifo", moves=["./mine.py:ShortFirst"]) == f"./mine.py:ShortFirst: {moves}"
    mine.write_text("class A:\n    def plan(self)\n")
    assert refused("./mine.py:A") == f"{mine}: line 2: expected ':'"
    mine.write_text("import math\n\nmath.nothing\n")
    expected = f"{mine}: line 3: AttributeError: module 'math' has no attribute 'nothing'"
    assert refused("./mine.py:A") == expected
    mine.write_text("class A:\n    def __init__(self):\n        1 / 0\n")
    assert refused("./mine.py:A") == f"{mine}: line 3: ZeroDivisionError: division by zero"
    mine.write_text("class A:\n    def plan(self, snapshot, memory): ...\n")
    assert "moves cannot follow" in refused("./mine.py:A", moves=["pack"])


def test_the_settings_check_makes_the_policy(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "gandiva.toml").write_text('[policy]\nname = "./mine.py:ShortFrist"\n')
    assert main(["config", "check", "gandiva.toml"]) == 1
    assert "no class 'ShortFrist' in it" in capsys.readouterr().err


def test_the_settings_check_looks_for_parts_that_are_not_in_use(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ('[policy.parts]\nx = "gone.py:Y"', '[simulation]\nprogress = "mine.py:Gone"'):
        (site / "gandiva.toml").write_text(text)
        assert main(["config", "check", "gandiva.toml"]) == 1
    assert "there is no such Python file" in (said := capsys.readouterr().err) and "no class 'Gone'" in said


def plan_fails(name: str, **settings: Any) -> str:
    """The message when it decides about two jobs for one GPU."""
    policy = make_policy(PolicySettings(name=name, **settings))
    c = Ideal(lambda: policy, cluster(1, 1), [packable(1), packable(2)], check=False)
    c.profiles = {job.id: Profile(peak_memory_bytes=GIB) for job in c.arrivals}
    with pytest.raises(PolicyError) as caught:
        for _ in range(3):
            c.step()
            c.now += 7200.0
    return str(caught.value)


@pytest.mark.parametrize(
    ("was", "becomes", "words"),
    [
        ("job.account in self.last", "{}[job.account]", "mine.py: line 25: KeyError: ''"),
        ("return (True,)", "return (False,)", "mine.py: ValueError: the time of job 1 has come (until), and"),
        (
            "return (True,)",
            "return (True, {1})",
            "mine.py: TypeError: Object of type set is not JSON",
        ),
        ("return (True,)", "return (math.inf,)", "mine.py: ValueError: Out of range float values"),
        ("return (job.account in self.last,", "return 5 or (", "mine.py: TypeError: "),
    ],
)
def test_an_order_that_fails_is_named_with_its_line(site: Path, was: str, becomes: str, words: str) -> None:
    assert was in ORDER
    (site / "mine.py").write_text(ORDER.replace(was, becomes))
    assert words in plan_fails("./mine.py:ShortFirst")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("draft.put(1, Placement())", "is stopped, which is for the order alone to decide"),
        ("draft.put(2, draft.of(1))", "is put beside [1], and says that it shares with []"),
        (
            "p = draft.of(1)\n        draft.put(1, Placement(p.gpus, p.allocation, frozenset({2})))\n"
            "        draft.put(2, Placement(p.gpus, p.gpus, frozenset({1})))",
            "may not be beside job 2: the memory of one was not measured yet",
        ),
        ("draft.put(9, draft.of(1))", "job 9 is not in the snapshot"),
        ("draft.put(2, Placement(frozenset({GpuId('n1', 0), GpuId('n1', 1)})))", "gets 2 GPUs instead of 1"),
        ("draft.put(2, Placement(frozenset({GpuId('n1', 0)})))", "gets GPUs outside of its allocation"),
        ("1 / 0", "mine.py: line 4: ZeroDivisionError"),
    ],
)
def test_a_move_that_breaks_a_rule_is_refused(site: Path, body: str, words: str) -> None:
    (site / "mine.py").write_text(
        "from controller.model import GpuId, Placement\n"
        f"class Mine:\n    def propose(self, snapshot, draft):\n        {body}\n"
    )
    policy = make_policy(PolicySettings(name="fifo", moves=["./mine.py:Mine"]))
    c = Ideal(lambda: policy, cluster(1, 1), [packable(1), packable(2)], check=False)
    with pytest.raises(PolicyError) as caught:
        c.step()
    assert words in str(caught.value)


def test_jobs_stay_as_they_are_while_the_policy_fails_and_it_begins_anew_when_mended(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = parse_settings('[policy]\nname = "./mine.py:ShortFirst"')

    async def scenario() -> None:
        world = World(site, gpus=2, policy=make_policy(settings.policy))
        world.policy_name = settings.policy.name
        first = world.submit(2)
        controller = world.start()
        await asyncio.sleep(30)
        assert world.running() == {first}
        (site / "mine.py").write_text(ORDER.replace("return (job.account in self.last", "1 / 0; return (1"))
        controller.use_settings(settings, make_policy(settings.policy))
        world.submit(2)
        await asyncio.sleep(30)
        assert world.running() == {first}
        sentence = f"{site / 'mine.py'}: line 25: ZeroDivisionError: division by zero; jobs stay as they are"
        assert f"policy ./mine.py:ShortFirst: {sentence}" in caplog.text
        (site / "mine.py").write_text(ORDER)
        controller.use_settings(settings, make_policy(settings.policy))
        await asyncio.sleep(5000)
        assert world.running() != {first}, "the first has had its two GPU-hours"
        await world.stop()

    run(scenario)
