# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from controller.errors import SettingsError
from controller.model import SuspendMethod
from controller.settings.base import parse_bytes, split_address
from controller.settings.describe import tables, to_toml
from controller.settings.generate import sample, show
from controller.settings.loading import (
    client_settings,
    load_settings,
    parse_settings,
    settings_path,
)
from controller.settings.policies import POLICIES
from controller.settings.schema import Settings, needs_restart
from scripts.settings_pages import manual, reference

ROOT = Path(__file__).resolve().parents[3]
REMEDY = "run python scripts/settings_pages.py"


def test_an_empty_file_gives_the_defaults() -> None:
    settings = parse_settings("")
    assert settings == Settings()
    assert settings.requests.suspend is SuspendMethod.COOPERATIVE
    assert settings.policy.name == "gandiva"


def test_values_are_read() -> None:
    settings = parse_settings(
        """
        [cluster]
        controller_host = "ctl"
        [suspend]
        residual_limit_bytes = "1.5GiB"
        [nodes.addresses]
        n1 = "10.0.0.1:2222"
        [policy]
        name = "fifo"
        [policy.gandiva]
        slice_seconds = 5
        priority_by_qos = { high = 10 }
        """
    )
    assert settings.suspend.residual_limit_bytes == 3 << 29
    assert settings.nodes.addresses == {"n1": "10.0.0.1:2222"}
    assert settings.policy.gandiva.slice_seconds == 5
    assert settings.policy.gandiva.priority_by_qos == {"high": 10}
    assert settings.api_url == "http://ctl:6822"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[lop]", "lop: no such table; did you mean loop?"),
        ("[loop]\ninterval_second = 1", "loop.interval_second: no such key; did you mean interval_seconds?"),
        ("[loop]\nretention_days = 1", "loop.retention_days: no such key here; it belongs into [journal]"),
        ("[loop]\nzzz = 1", "loop.zzz: no such key; [loop] has interval_seconds"),
        (
            "[policy.locality]\nx = 3",
            "policy.locality.x: no such key; [policy.locality] has assumed_gain_fraction",
        ),
        ('[policy.gandiva]\nslice_seconds = "60"', "policy.gandiva.slice_seconds"),
        ("[policy.gandiva]\nslice_seconds = nan", "policy.gandiva.slice_seconds = NaN"),
        (
            "[policy.allocation]\nprices = {v100 = 0}",
            "policy.allocation.prices.v100 = 0: must be greater than 0",
        ),
        ("[loop]\ninterval_seconds = 0.01", "loop.interval_seconds = 0.01: must be a number from 0.05 to 60"),
        ("[loop]\ninterval_seconds = nan", "loop.interval_seconds = NaN: must be a number from 0.05 to 60"),
        ('[loop]\ninterval_seconds = "1"', 'loop.interval_seconds = "1": must be a number from 0.05 to 60'),
        ("loop = 3", "loop = 3: must be a table"),
        ('[suspend]\nmode = "slrum"', 'suspend.mode = "slrum": must be "slurm" or "node"'),
        (
            '[suspend]\nresidual_limit_bytes = "4 gigs"',
            'residual_limit_bytes = "4 gigs": must be a number of bytes or a size such as "512MiB" or "4GiB"',
        ),
        (
            "[suspend]\nresidual_limit_bytes = -1",
            'suspend.residual_limit_bytes = -1: must be a number of bytes, or a size such as "4GiB"',
        ),
        ("[requests]\npack = 1", "requests.pack = 1: must be true or false"),
        (
            '[requests]\nsuspend = "no"',
            'requests.suspend = "no": must be "cooperative" or "transparent" or "requeue"',
        ),
        ('[policy]\nname = "drf"', 'policy.name = "drf": must be one of "fifo", "gandiva"'),
        ("[policy.gandiva]\nmax_jobs_per_gpu = 2.5", "must be a whole number from 1 to 64"),
        (
            '[policy.gandiva.priority_by_qos]\nhigh = "x"',
            'priority_by_qos.high = "x": must be a whole number',
        ),
        ('[nodes.addresses]\n"a b" = "x"', 'nodes.addresses."a b" = "a b": must be a node name'),
        (
            '[nodes.addresses]\nn1 = "h:99999"',
            'nodes.addresses.n1 = "h:99999": must be "host" or "host:port"',
        ),
        ('[nodes]\nssh_user = "-oProxyCommand=x"', "must be a user name"),
        ('[cluster]\ncontroller_host = "a/b"', "must be a host name"),
        ('[journal]\npath = "here"', 'journal.path = "here": must be an absolute path (starting with /)'),
        ('[api]\nlisten = "6822"', 'api.listen = "6822": must be "host:port"'),
        ('[api]\nurl = "file:///etc/passwd"', "must be a URL such as"),
        ("[log]\nfile = 1", "log.file = 1: must be an absolute path"),
        ("[a", "not valid TOML"),
        (
            "[policy.tiresias-gittins]\nmode = 1\n[policy.tiresias_gittins]\nmode = 2",
            'policy: has the table "tiresias-gittins" twice, with dashes and with underscores',
        ),
    ],
)
def test_a_mistake_gives_one_message_with_file_key_value_and_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(text, "/etc/g.toml")
    assert str(caught.value).startswith("/etc/g.toml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings('[loop]\ninterval_seconds = 0\n[suspend]\nmode = "x"', "g.toml")
    first, *problems = str(caught.value).split("\n  ")
    assert (first, len(problems)) == ("g.toml: 2 problems:", 2)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(f'[suspend]\nmode = "{"x" * 5000}"')
    assert len(str(caught.value)) < 200


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no settings file .*none\.toml.*gandiva config sample"):
        load_settings(tmp_path / "none.toml")
    with pytest.raises(SettingsError, match="Is a directory"):
        load_settings(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not UTF-8"):
        load_settings(binary)
    huge = tmp_path / "huge.toml"
    huge.write_bytes(b"#" * (1 << 21))
    with pytest.raises(SettingsError, match="larger than"):
        load_settings(huge)


def test_which_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GANDIVA_CONFIG", raising=False)
    assert settings_path() == Path("/etc/gandiva/gandiva.toml")
    monkeypatch.setenv("GANDIVA_CONFIG", "/from/environment")
    assert settings_path() == Path("/from/environment")
    assert settings_path(Path("/named")) == Path("/named")


def test_clients_do_without_a_file_unless_one_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GANDIVA_CONFIG", raising=False)
    monkeypatch.setattr("controller.settings.loading.DEFAULT_PATH", tmp_path / "none")
    assert client_settings() == Settings()
    with pytest.raises(SettingsError):
        client_settings(tmp_path / "none")
    monkeypatch.setenv("GANDIVA_CONFIG", str(tmp_path / "none"))
    with pytest.raises(SettingsError):
        client_settings()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("123", 123),
        ("1kB", 1000),
        ("4GiB", 4 << 30),
        ("4 GiB", 4 << 30),
        ("0.5MiB", 1 << 19),
        ("2TB", 2 * 10**12),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "4G", "1e9", "4 Gib", "0x10", "9" * 30])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="size such as"):
        parse_bytes(text)


def test_addresses() -> None:
    assert split_address("n1", 22) == ("n1", 22)
    assert split_address("[::1]:2022", 22) == ("::1", 2022)
    for wrong in ("", "a b", "n1:", "n1:0", "n1:70000", "-x", "::1"):
        with pytest.raises(ValueError, match="host"):
            split_address(wrong, 22)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Settings().loop.interval_seconds = 3


def test_settings_are_few() -> None:
    assert sum(len(table.keys) for table in tables()) <= 130


def test_each_key_of_a_policys_table_has_a_policy_that_reads_it() -> None:
    keys = {key.path for table in tables() for key in table.keys}
    read = {f"{table}.{key}" for own in POLICIES.values() for key, table in own.items()}
    of_policies = {key.rpartition(".")[0] for key in read}
    unread = {key for key in keys - read if key.rpartition(".")[0] in of_policies}
    assert read <= keys
    assert unread == {f"policy.{key}" for key in ("name", "moves", "parts", "own", "fair_share")}


# -- made from the schema ----------------------------------------------------------------------


def test_the_sample_in_the_tree_is_up_to_date() -> None:
    assert (ROOT / "configs/gandiva.toml").read_text() == sample(), REMEDY


def test_the_reference_page_is_up_to_date() -> None:
    assert (ROOT / "docs/settings.md").read_text() == reference(), REMEDY


def test_the_manual_page_is_up_to_date() -> None:
    assert (ROOT / "docs/man/gandiva.toml.5").read_text() == manual(), REMEDY


def test_the_sample_is_valid_and_so_is_each_of_its_lines() -> None:
    assert parse_settings(sample()) == Settings()
    uncommented = "\n".join(
        line.removeprefix("#") if line.startswith("#") and not line.startswith("# ") else line
        for line in sample().splitlines()
    )
    settings = parse_settings(uncommented)
    assert settings.api.url == "http://ctl:6822"
    assert settings.model_copy(update={"api": Settings().api, "log": Settings().log}) == Settings()


def test_what_is_in_force_reads_back_as_the_same_settings() -> None:
    settings = parse_settings(
        '[suspend]\nmode = "node"\n[nodes.addresses]\nn1 = "h"\n[policy.gandiva.priority_by_qos]\n'
        '"a b" = -1\n[log]\nfile = "/x/\\"y\\""'
    )
    shown = show(settings, "/etc/g.toml")
    assert parse_settings(shown) == settings
    assert 'mode = "node"  # set' in shown
    assert "release_context = true\n" in shown


def test_every_key_has_a_description_and_a_unit_in_its_name() -> None:
    for table in tables():
        for key in table.keys:
            assert len(key.description) > 15 and key.description.endswith((".", ")")), key.path
            if isinstance(key.default, float):
                assert key.name.endswith(("_seconds", "_days", "_fraction", "_ratio", "weight")), key.path
            if key.default is not None:
                assert to_toml(key.default)


def test_what_takes_a_restart() -> None:
    old = parse_settings("")
    new = parse_settings('[loop]\ninterval_seconds = 2\n[journal]\npath = "/x"\n[suspend]\nmode = "node"')
    assert needs_restart(old, new) == ["suspend.mode", "journal.path"]
    assert needs_restart(old, old) == []
