# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm's options, files and nodes: what is found, and the line that puts it right."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from controller import __version__
from controller.checks.finding import Finding, Level, exit_status
from controller.checks.gpus import gpu_nodes, judge_node
from controller.checks.slurm_files import judge_description, judge_files, judge_plugin
from controller.checks.slurm_options import SlurmOptions, judge_admin_level, judge_options, judge_private_data
from controller.nodes.installed import built_for, filesystem_of, keys_from_anywhere
from controller.settings.loading import parse_settings
from controller.slurm_config.lua import EXAMPLE

RULE = (Path(__file__).parents[2] / "public" / "site-rule-typed-gres.lua").read_text()
CONFIG = (Path(__file__).parent / "recorded" / "config-26.05.txt").read_text()
REPOSITORY = Path(__file__).resolve().parents[3]
GRES = ",".join([f"gpu:a100_{i}:1" for i in range(4)] + [f"shard:a100_{i}:16" for i in range(4)])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('restrict,command="/usr/bin/gandiva-agent" ssh-ed25519 AAAA gandiva', 1),
        ('command="gandiva-agent --run-dir /run/x",restrict ssh-ed25519 AAAA', 1),
        ('from="10.0.0.1",restrict,command="/usr/bin/gandiva-agent" ssh-ed25519 AAAA', 0),
        ('restrict,command="/usr/bin/gandiva-agent",from="ctl,10.0.0.0/8" ssh-ed25519 AAAA', 0),
        ('restrict,command="/usr/bin/gandiva-agent --x=,from=y" ssh-ed25519 AAAA', 1),
        ('restrict,command="/usr/bin/gandiva-agent \\",from=\\"x" ssh-ed25519 AAAA', 1),
        ("# gandiva-agent ssh-ed25519 AAAA", 0),
        ("ssh-ed25519 AAAA gandiva-agent", 0),
        ('command="/usr/bin/backup" ssh-ed25519 AAAA', 0),
        ("", 0),
    ],
)
def test_keys_that_start_the_agent_from_anywhere(tmp_path: Path, line: str, found: int) -> None:
    keys = tmp_path / "authorized_keys"
    keys.write_bytes(f"# mine\n{line}\n".encode() + b"\xff\n")
    assert keys_from_anywhere(keys) == found


def bad(findings: Any) -> list[Finding]:
    return [finding for finding in findings if finding.level is not Level.OK]


def changed(**values: str) -> SlurmOptions:
    options = SlurmOptions.parse(CONFIG)
    return SlurmOptions({**options.values, **{key.lower(): value for key, value in values.items()}})


def test_a_recorded_configuration_is_in_order() -> None:
    found = list(judge_options(SlurmOptions.parse(CONFIG)))
    assert len(found) >= 10 and bad(found) == []


def test_a_rate_limit_with_room_for_the_controller_is_in_order() -> None:
    limits = "rl_enable,rl_bucket_size=500,rl_refill_rate=100,rl_log_freq=10"
    found = list(judge_options(changed(SlurmctldParameters=limits)))
    assert bad(found) == []
    assert "500 requests at once, then 100 a second" in [each.found for each in found]


@pytest.mark.parametrize(
    ("private_data", "lines", "level"),
    [
        ("none", "", "ok"),
        ("usage,users", "", "ok"),
        ("accounts,jobs", "", "warning"),
        ("accounts,jobs", 'private_data = true\ntoken_file = "/etc/gandiva/token"', "ok"),
        ("none", 'token_file = "/etc/gandiva/token"', "warning"),
    ],
)
def test_the_api_hides_what_slurm_hides(private_data: str, lines: str, level: str) -> None:
    finding = judge_private_data(changed(PrivateData=private_data), parse_settings(f"[api]\n{lines}\n").api)
    assert finding.level.value == level, finding
    if level == "warning":
        assert "[api] private_data = true and token_file" in finding.change


@pytest.mark.parametrize(
    ("values", "level", "change"),
    [
        ({"GresTypes": "gpu"}, "error", "in /etc/slurm/slurm.conf: GresTypes=gpu,shard, then restart"),
        ({"GresTypes": "(null)"}, "error", "GresTypes=gpu,shard"),
        ({"SelectType": "select/linear"}, "error", "SelectType=select/cons_tres"),
        (
            {"SelectTypeParameters": "CR_CORE_MEMORY"},
            "error",
            "SelectTypeParameters=CR_CORE_MEMORY,MULTIPLE_SHARING_GRES_PJ",
        ),
        (
            {"SelectTypeParameters": "CR_CORE,MULTIPLE_SHARING_GRES_PJ"},
            "warning",
            "SelectTypeParameters=CR_Core_Memory,",
        ),
        ({"JobSubmitPlugins": "require_timelimit"}, "error", "JobSubmitPlugins=require_timelimit,lua"),
        ({"PlugStackConfig": "(null)"}, "error", "PlugStackConfig=/etc/slurm/plugstack.conf"),
        ({"ProctrackType": "proctrack/linuxproc"}, "error", "ProctrackType=proctrack/cgroup"),
        ({"TaskPlugin": "task/affinity"}, "error", "TaskPlugin=task/affinity,task/cgroup"),
        ({"ConstrainDevices": "no"}, "error", "in /etc/slurm/cgroup.conf: ConstrainDevices=yes"),
        (
            {"PreemptParameters": "min_exempt_priority=1,suspend_grace_time=30"},
            "warning",
            "PreemptParameters=min_exempt_priority=1,suspend_grace_time=2",
        ),
        (
            {"SlurmctldParameters": "enable_configless,rl_enable"},
            "warning",
            "SlurmctldParameters=enable_configless,rl_enable,rl_bucket_size=500,rl_refill_rate=100",
        ),
        (
            {"SlurmctldParameters": "rl_enable,rl_refill_rate=100,rl_refill_period=10,rl_bucket_size=500"},
            "warning",
            "SlurmctldParameters=rl_enable,rl_bucket_size=500,rl_refill_rate=100",
        ),
        ({"PreemptMode": "GANG,SUSPEND"}, "warning", "PreemptMode=REQUEUE or OFF"),
        ({"PreemptMode": "GANG"}, "warning", "PreemptMode=REQUEUE or OFF"),
        ({"DefMemPerCPU": "UNLIMITED"}, "warning", "DefMemPerCPU=MIB"),
        ({"JobRequeue": "0"}, "warning", "JobRequeue=1"),
        ({"JobFileAppend": "0"}, "warning", "in /etc/slurm/slurm.conf: JobFileAppend=1, then scontrol"),
        ({"AccountingStorageType": "(null)"}, "error", "AccountingStorageType=accounting_storage/slurmdbd"),
        (
            {"AccountingStorageTRES": "cpu,gres/gpu"},
            "warning",
            "AccountingStorageTRES=cpu,gres/gpu,gres/shard",
        ),
        ({"HASH_VAL": "Different Ours=0x1 Slurmctld=0x2"}, "warning", "then scontrol reconfigure"),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_one_wrong_option_is_one_finding_with_its_line(
    values: dict[str, str], level: str, change: str
) -> None:
    (finding,) = bad(judge_options(changed(**values)))
    assert finding.level.value == level
    assert change in finding.change, finding


def test_options_that_stand_on_several_lines_are_all_seen() -> None:
    options = SlurmOptions.parse(
        "Prolog[0] = /a/*\nProlog[1] = /b\nFoo = (null)\nPriorityFlags           = \n"
    )
    assert options.words("Prolog") == ["/a/*", "/b"]
    assert options.get("Foo") == options.get("PriorityFlags") == options.get("never heard of") == ""


@pytest.mark.parametrize(
    ("reply", "level", "change"),
    [
        ("gandiva|Operator\n", "ok", ""),
        ("gandiva|Administrator\n", "ok", ""),
        ("gandiva|None\n", "error", "sacctmgr modify user gandiva set adminlevel=operator"),
        ("", "error", "sacctmgr add user gandiva account=root adminlevel=operator"),
    ],
)
def test_the_admin_level(reply: str, level: str, change: str) -> None:
    finding = judge_admin_level(reply, "gandiva")
    assert (finding.level.value, finding.change) == (level, change)


# -- nodes --------------------------------------------------------------------------------------------


def nodes_reply(**over: Any) -> str:
    node: dict[str, Any] = {
        "name": "n1",
        "address": "n1",
        "state": ["IDLE"],
        "reason": "",
        "gres": GRES,
        "gres_used": "",
        "cpus": 16,
        "real_memory": 8192,
        "alloc_memory": 0,
        "active_features": ["gandiva_a100"],
        "version": "26.05.5",
        **over,
    }
    cpu_only = {**node, "name": "c1", "gres": "", "active_features": []}
    return json.dumps({"nodes": [node, cpu_only]})


def judged(**over: Any) -> list[Finding]:
    (node,) = gpu_nodes(nodes_reply(**over))
    return list(judge_node(node, Path("/etc/slurm/slurm.conf"), "26.05.5"))


def test_a_node_in_order_and_one_without_gpus() -> None:
    found = judged()
    assert bad(found) == []
    assert "4 GPUs a100_0 to a100_3, 16 shards each" in [f.found for f in found]


@pytest.mark.parametrize(
    ("over", "level", "found", "change"),
    [
        ({"gres": "gpu:a100:4"}, "error", "without a type of its own", f"Gres={GRES}"),
        ({"gres": "gpu:4"}, "error", "without a type of its own", f"Gres={GRES}"),
        (
            {"gres": GRES.replace(",shard:a100_3:16", "")},
            "error",
            "GPU 3 has 0 shards",
            f"Gres={GRES}",
        ),
        ({"gres": "gpu:a100_1:1,shard:a100_1:16"}, "error", "without a type of its own", "gpu:a100_0:1,"),
        (
            {"gres": GRES.replace("a100_3", "v100_3")},
            "error",
            "several models: a100, v100",
            "NodeName=n1 in /etc/slurm/slurm.conf",
        ),
        ({"gres": GRES.replace("a100_3:16", "a100_3:8")}, "warning", "a100_3: 8", f"Gres={GRES}"),
        ({"gres": "\x00nonsense:::"}, "error", "without a type of its own", "Gres="),
        (
            {"gres": "gpu:a100:4(S:0,1),localtmp:3000,vmem:no_consume:80G"},
            "error",
            "without a type of its own",
            f"Gres={GRES},localtmp:3000,vmem:no_consume:80G, gres.conf",
        ),
        (
            {"state": ["IDLE", "CLOUD", "POWERED_DOWN"]},
            "warning",
            "power saving",
            "slurm.conf: SuspendExcNodes",
        ),
        ({"active_features": ["ib"]}, "error", "gandiva_a100 is missing", "Feature=ib,gandiva_a100"),
        ({"version": "24.11.5"}, "warning", "slurmd is 24.11.5, slurmctld 26.05.5", "finish the upgrade"),
        (
            {"state": ["IDLE", "DRAIN"], "reason": "disk"},
            "warning",
            "disk",
            "scontrol update nodename=n1 state=resume",
        ),
        (
            {"state": ["UNKNOWN"], "version": ""},
            "warning",
            "UNKNOWN: its slurmd has not registered",
            "systemctl status slurmd on n1",
        ),
        (
            {"state": ["UNKNOWN", "DRAIN", "INVALID_REG"], "reason": "gres/gpu count too low (3 < 4)"},
            "error",
            "count too low",
            "/etc/slurm/gres.conf agree",
        ),
        (
            {"state": ["IDLE", "DRAIN"], "reason": "gres/gpu count reported lower than configured (3 < 4)"},
            "error",
            "count reported lower",
            "/etc/slurm/gres.conf agree",
        ),
    ],
    ids=lambda value: "" if isinstance(value, dict) else str(value)[:20],
)
def test_a_node_out_of_order(over: dict[str, Any], level: str, found: str, change: str) -> None:
    (finding,) = bad(judged(**over))
    assert finding.level.value == level and finding.where == "n1"
    assert found in finding.found and change in finding.change, finding


# -- files --------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Slurm configuration folder in order, and a plugin for Slurm 26.05."""
    lua = REPOSITORY / "slurm_plugin" / "lua" / "gandiva.lua"
    files = {
        "plugstack.conf": f"# the site's\ninclude {tmp_path}/plugstack.conf.d/*.conf\n",
        "plugstack.conf.d/gandiva.conf": "# ours\nrequired spank_gandiva.so jobside=/opt/x default=off\n",
        "job_submit.lua": (
            f'local gandiva = dofile("{tmp_path}/gandiva/gandiva.lua")\n'
            "function slurm_job_submit(a, b, c) return gandiva.job_submit(a, b, c) end\n"
            "function slurm_job_modify(a, b, c, d) return gandiva.job_modify(a, b, c, d) end\n"
        ),
        "gandiva/gandiva.lua": lua.read_text(),
        "gandiva/gandiva_settings.lua": 'return {\n   trusted_users = { "slurm", "gandiva" },\n}\n',
        "prolog.d/50-gandiva.sh": "#!/bin/sh\n",
        "epilog.d/50-gandiva.sh": "#!/bin/sh\n",
        "gres.conf": (
            "AutoDetect=off\nNodeName=n[1-2] Name=gpu Type=a100_0 File=/dev/nvidia0\n"
            "NodeName=n[1-2] Name=shard Type=a100_0 Count=16 File=/dev/nvidia0 # File=/dev/nvidia9\n"
            "NodeName=n9 Name=gpu Type=a100_80 File=/dev/nvidia0\n"
        ),
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "spank_gandiva.so").write_bytes(library(0x1A0505))
    return tmp_path


def files_of(folder: Path, host: str = "ctl") -> list[Finding]:
    options = changed(
        SLURM_CONF=str(folder / "slurm.conf"),
        PlugStackConfig=str(folder / "plugstack.conf"),
        PluginDir=str(folder / "plugins"),
        Prolog=str(folder / "prolog.d" / "*"),
        Epilog=str(folder / "epilog.d" / "*"),
    )
    return list(judge_files(options, host, "gandiva"))


def library(number: int, symbol: bytes = b"plugin_version") -> bytes:
    """A 64-bit ELF file that exports one constant, and nothing else."""
    names = b"\0" + symbol + b"\0"
    value = struct.pack("<I", number)
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x11, 0, 2, 0x2000, 4)
    at = 64
    names_at, value_at, symbols_at = at, at + len(names), at + len(names) + 4
    sections_at = symbols_at + len(symbols)

    def section(kind: int, address: int, offset: int, size: int, link: int = 0) -> bytes:
        return struct.pack("<IIQQQQIIQQ", 0, kind, 0, address, offset, size, link, 0, 1, 0)

    table = (
        section(0, 0, 0, 0)
        + section(3, 0, names_at, len(names))
        + section(1, 0x2000, value_at, 4)
        + section(11, 0, symbols_at, len(symbols), 1)
    )
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, sections_at, 0, 64, 0, 0, 64, 4, 0
    )
    return header + names + value + symbols + table


def test_files_in_order(folder: Path) -> None:
    found = files_of(folder)
    assert bad(found) == []
    assert {f.check for f in found} == {
        "plugstack", "SPANK plugin", "job_submit", "Lua module", "gres.conf", "Prolog", "Epilog",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "check", "change"),
    [
        ("plugstack.conf", "# nothing\n", "plugstack", "required spank_gandiva.so jobside="),
        ("plugstack.conf.d/gandiva.conf", None, "plugstack", "required spank_gandiva.so jobside="),
        (
            "plugstack.conf.d/gandiva.conf",
            "#required spank_gandiva.so\n",
            "plugstack",
            "required spank_gandiva.so jobside=",
        ),
        (
            "plugstack.conf.d/gandiva.conf",
            "optional spank_gandiva.so default=on\n",
            "plugstack",
            "required spank_gandiva.so default=on",
        ),
        (
            "plugstack.conf.d/gandiva.conf",
            "required spank_gandiva.so\nrequired /x/spank_gandiva.so\n",
            "plugstack",
            "keep one of the lines",
        ),
        ("job_submit.lua", None, "job_submit", "gandiva.job_modify(job_desc"),
        ("job_submit.lua", None, "job_submit", "if gandiva.trusts(modify_uid) then return slurm.SUCCESS end"),
        (
            "job_submit.lua",
            "-- dofile gandiva.lua gandiva.job_submit( gandiva.job_modify(",
            "job_submit",
            "dofile(",
        ),
        pytest.param(
            "job_submit.lua",
            f"dofile('gandiva.lua')\nlocal rc = gandiva.job_submit(a, b, c)\n{RULE}\ngandiva.job_modify(a)\n",
            "job_submit",
            "move the rule before gandiva.job_submit",
            marks=pytest.mark.public,
        ),
        ("gandiva/gandiva.lua", 'M.version = "0.0.9"\n', "Lua module", f"version {__version__}"),
        ("gandiva/gandiva.lua", None, "Lua module", f"version {__version__}"),
        (
            "gandiva/gandiva_settings.lua",
            'trusted_users = { "slurm", "gandivax" }',
            "Lua module",
            'controller_users = ["gandiva"]',
        ),
        pytest.param(
            "gres.conf",
            "NodeName=n1 File=/dev/nvidia1 Type=a100_0 Name=gpu\n"
            "NodeName=n1 Name=shard Count=16 Type=a100_0\n",
            "gres.conf",
            "File=/dev/nvidia0",
            marks=pytest.mark.public,
        ),
        ("prolog.d/50-gandiva.sh", None, "Prolog", "Prolog="),
        ("epilog.d/50-gandiva.sh", None, "Epilog", "Epilog="),
        ("plugins/spank_gandiva.so", "no library", "SPANK plugin", "make -C slurm_plugin"),
    ],
)
def test_one_wrong_file_is_one_finding(
    folder: Path, name: str, text: str | None, check: str, change: str
) -> None:
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    (finding,) = bad(files_of(folder))
    assert finding.check == check and change in finding.change, finding


def test_a_rule_before_the_call_is_well(folder: Path) -> None:
    (folder / "job_submit.lua").write_text(
        f"dofile('gandiva.lua')\n{RULE}\nreturn gandiva.job_submit(a, b, c)\ngandiva.job_modify(a)\n"
    )
    assert bad(files_of(folder)) == []


TYPED = '   if job_desc.tres_per_node == "gres/gpu:1" then return slurm.ERROR end\n'
HELPER = f"local function rule(job_desc)\n{TYPED}end\n"
LOG = '   slurm.log_info("job %s -- tres_per_node", tostring(job_desc.name))\n'
TRUSTS = "   if gandiva.trusts(modify_uid) then return slurm.SUCCESS end\n"
BEFORE, MODIFY = (
    "move the rule before gandiva.job_submit(",
    "first in slurm_job_modify: if gandiva.trusts(modify",
)


def submit(before: str = "", behind: str = "") -> str:
    return (
        f"function slurm_job_submit(job_desc, part_list, submit_uid)\n{before}"
        "   local rc = gandiva.job_submit(job_desc, part_list, submit_uid)\n"
        f"   if rc ~= slurm.SUCCESS then return rc end\n{behind}   return slurm.SUCCESS\nend\n"
    )


def modify(before: str = "", behind: str = "") -> str:
    return (
        f"function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)\n{before}"
        "   local rc = gandiva.job_modify(job_desc, job_rec, part_list, modify_uid)\n"
        f"   if rc ~= slurm.SUCCESS then return rc end\n{behind}   return slurm.SUCCESS\nend\n"
    )


@pytest.mark.parametrize(
    ("text", "change"),
    [
        (submit(TYPED) + modify(), ""),
        (submit(behind=TYPED) + modify(), BEFORE),
        (modify() + submit(behind=TYPED), BEFORE),
        (modify() + submit(TYPED), ""),
        (submit() + modify(behind=TYPED), MODIFY),
        (submit() + modify(TYPED), MODIFY),
        (submit() + modify("   job_desc.comment = nil\n"), MODIFY),
        (submit() + modify("   rule(job_desc)\n"), MODIFY),
        (submit() + modify(TRUSTS + TYPED), ""),
        (submit() + modify(TYPED + TRUSTS), MODIFY),
        (submit() + modify(LOG) + 'slurm.log_info("initialized")\nreturn slurm.SUCCESS\n', ""),
        (HELPER + submit("   rule(job_desc)\n") + modify(), ""),
        (submit("   rule(job_desc)\n") + HELPER.removeprefix("local ") + modify(), ""),
        (HELPER + submit(behind="   rule(job_desc)\n") + modify(), BEFORE),
        (
            HELPER.replace("function rule", "rule = function")
            + submit(behind="   rule(job_desc)\n")
            + modify(),
            BEFORE,
        ),
        (
            f"{HELPER}local function rules(job_desc)\n   return rule(job_desc)\nend\n"
            + submit(behind="   rules(job_desc)\n")
            + modify(),
            BEFORE,
        ),
        (submit(behind=TYPED.replace("tres_per_node", "gres")) + modify(), BEFORE),
        (submit(behind="   if rule (job_desc) then return -1 end\n") + HELPER + modify(), BEFORE),
        (submit(behind=f"--[[\n{TYPED}]]\n--[==[ {TYPED} ]] ]==]\n-- {TYPED}") + modify(), ""),
        (
            f"--[[\n{submit()}{modify()}]]\nfunction slurm_job_submit() return slurm.SUCCESS end\n",
            "rc = gandiva.job_submit(job",
        ),
        (
            (submit() + modify())
            .replace("job_submit(job", "job_submit (job")
            .replace("modify(job", "modify (job"),
            "",
        ),
        (EXAMPLE.partition("\n\n")[2], ""),
        (EXAMPLE.partition("\n\n")[2].replace("-- your own rules here\n", TYPED), ""),
    ],
)
def test_where_rules_stand(folder: Path, text: str, change: str) -> None:
    (folder / "job_submit.lua").write_text(f'local gandiva = dofile("/x/gandiva.lua")\n{text}')
    found = bad(files_of(folder))
    assert [each.check for each in found] == (["job_submit"] if change else [])
    assert all(change in each.change for each in found), found


def test_a_script_that_is_not_executable(folder: Path) -> None:
    (folder / "prolog.d" / "50-gandiva.sh").chmod(0o644)
    (finding,) = bad(files_of(folder))
    assert finding.change == f"chmod 755 {folder}/prolog.d/50-gandiva.sh"


def test_what_is_on_another_host_is_said_to_be_there(folder: Path) -> None:
    (folder / "job_submit.lua").unlink()
    (folder / "gandiva" / "gandiva.lua").unlink()
    (finding,) = bad(files_of(folder, host="admin"))
    assert finding.level is Level.WARNING and "on ctl" in finding.change


def test_a_plugstack_that_includes_itself_ends(folder: Path) -> None:
    (folder / "plugstack.conf").write_text(f"include {folder}/plugstack.conf\ninclude {folder}/plug*.conf\n")
    (finding,) = bad(files_of(folder))
    assert finding.check == "plugstack"


@pytest.mark.parametrize(
    ("number", "level"), [(0x1A0505, "ok"), (0x1A0500, "ok"), (0x180B05, "error"), (0x1A0B00, "error")]
)
def test_the_plugin_must_be_of_slurms_release(tmp_path: Path, number: int, level: str) -> None:
    (tmp_path / "p.so").write_bytes(library(number))
    built = built_for(tmp_path / "p.so")
    assert built == f"{number >> 16}.{number >> 8 & 255:02d}.{number & 255}"
    assert judge_plugin("n1", built, "26.05.5").level.value == level


@pytest.mark.parametrize("cut", [0, 5, 63, 70, 90, 130, 200])
def test_a_cut_off_library_is_no_crash(tmp_path: Path, cut: int) -> None:
    (tmp_path / "p.so").write_bytes(library(0x1A0505)[:cut])
    with pytest.raises(ValueError, match=r"p\.so|ELF"):
        built_for(tmp_path / "p.so")
    (tmp_path / "q.so").write_bytes(library(0x1A0505, b"another_symbol"))
    with pytest.raises(ValueError, match="no SPANK plugin"):
        built_for(tmp_path / "q.so")


def test_the_plugin_that_is_really_built() -> None:
    plugin = REPOSITORY / "slurm_plugin" / "build" / "spank_gandiva.so"
    if not plugin.exists():
        pytest.skip("not built (make -C slurm_plugin)")
    major, minor, _ = built_for(plugin).split(".")
    assert 20 <= int(major) <= 40 and minor in ("02", "05", "08", "11")


def test_the_file_system_of_a_folder(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 0:1 / / rw - ext4 /dev/sda rw\n"
        f"2 1 0:2 / {tmp_path} rw shared:1 - tmpfs tmpfs rw\n"
        f"3 2 0:3 / {tmp_path}/a\\040b rw - nfs4 server:/x rw\n"
    )
    (tmp_path / "a b").mkdir()
    assert filesystem_of(tmp_path / "run" / "gandiva", mounts) == "tmpfs"
    assert filesystem_of(tmp_path / "a b" / "c", mounts) == "nfs4"
    assert filesystem_of(Path("/etc"), mounts) == "ext4"
    assert filesystem_of(tmp_path, tmp_path / "none") == ""


def test_files_against_their_description(tmp_path: Path) -> None:
    from controller.slurm_config.description import load
    from controller.slurm_config.fragments import render

    description = REPOSITORY / "configs" / "slurm" / "mini.toml"
    for name, text in render(load(description)).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    options = changed(SLURM_CONF=str(tmp_path / "slurm.conf"))
    assert bad(judge_description(description, options, "ctl")) == []
    with (tmp_path / "gres.conf").open("a") as gres:
        gres.write("NodeName=o1 Name=gpu Type=2080ti File=/dev/nvidia0\n")
    assert bad(judge_description(description, options, "ctl")) == []
    conf = tmp_path / "gandiva" / "slurm.conf"
    conf.write_text(conf.read_text().replace("shard:a100_3:16", "shard:a100_3:8"))
    (finding,) = bad(judge_description(description, options, "ctl"))
    assert "NodeName=n[1-2]" in finding.found and f"--cluster {description}" in finding.change
    (finding,) = bad(judge_description(tmp_path / "none.toml", options, "ctl"))
    assert finding.level is Level.ERROR


def test_the_exit_status() -> None:
    levels = [Finding(level, "x", "y", "z") for level in Level]
    assert [exit_status(levels[:n]) for n in range(4)] == [0, 0, 1, 2]
