# SPDX-License-Identifier: GPL-2.0-or-later
"""The study file: what it makes, and what each mistake in it is called."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from controller.cluster.request import read_message
from controller.cluster.trial import TrialSpec
from controller.model import SuspendMethod
from controller.observe.requests import parse_trial
from controller.policies.assemble import make_policy
from controller.run import study as module
from controller.run.command import SHELL
from controller.run.study import Study, StudyError, read_commands, read_study, submitted

ONE = "[[trials]]\n"


def there(folder: Path) -> set[Path]:
    """What is in a folder, but for what Python makes of a file with a policy."""
    return {path for path in folder.iterdir() if path.name != "__pycache__"}


def read(folder: Path, text: str | bytes, policy: str | None = None) -> Study:
    path = folder / "lr.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = there(folder)
    try:
        return read_study(path, None, policy)[0]
    finally:
        assert there(folder) == before, "nothing is made on disk"


def one(folder: Path, text: str) -> TrialSpec:
    """The only trial of a study whose `[[trials]]` has these keys."""
    (trial,) = read(folder, ONE + text).trials
    return trial


def printed(command: tuple[str, ...]) -> list[str]:
    """What a command prints, by line."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_defaults(tmp_path: Path) -> None:
    study = read(tmp_path, ONE + 'command = "train"')
    assert study.name == "lr"
    assert study.settings.policy.name == "gandiva"
    assert (study.settings.suspend.mode, study.settings.loop.interval_seconds) == ("node", 0.25)
    asked = read_message(study.trials[0].request)
    assert study.trials == (
        TrialSpec(
            name="trial1",
            command=(SHELL, "-c", "train"),
            directory=str(tmp_path),
            request=study.trials[0].request,
        ),
    )
    assert (asked.wanted_gpus, asked.weight, asked.min_gpus, asked.max_gpus) == (1, 1.0, None, None)
    assert (asked.pack, asked.migrate, asked.suspend, asked.model, asked.search) == (*[None] * 4, "lr")


def test_every_key_of_a_trial(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    trial = one(
        tmp_path,
        """
        name = "base"
        command = ["train", "--to={store}", "{name}", "{n}"]
        with = { n = 3 }
        gpus = "2-4"
        weight = 2
        priority = 4
        exclusive = true
        pack = false
        migrate = true
        suspend = "requeue"
        gpu_types = ["a100", "h100"]
        model = "resnet"
        cpus = 8
        memory = "16GiB"
        directory = "code"
        environment = { OMP_NUM_THREADS = 4, MODE = "a b" }
        """,
    )
    asked = read_message(trial.request)
    assert (asked.wanted_gpus, asked.min_gpus, asked.max_gpus) == (2, 2, 4)
    assert (asked.weight, asked.pack, asked.migrate, asked.suspend) == (
        2.0,
        False,
        True,
        SuspendMethod.REQUEUE,
    )
    assert (asked.gpu_types, asked.model) == (["a100", "h100"], "resnet")
    search = parse_trial(trial.word, "lr")
    assert (search.priority, search.exclusive) == (4.0, True)
    assert (trial.cpus, trial.memory_bytes, trial.directory) == (8, 16 << 30, f"{tmp_path}/code")
    assert trial.environment == {"OMP_NUM_THREADS": "4", "MODE": "a b"}
    assert trial.command == ("train", f"--to={tmp_path}/lr/checkpoints/base", "base", "3")


@pytest.mark.parametrize(
    ("given", "expected"),
    [("1", (1, None, None)), ("4", (4, None, None)), ('"3"', (3, None, None)), ('"2-2"', (2, 2, 2))],
)
def test_numbers_of_gpus(tmp_path: Path, given: str, expected: tuple[int, ...]) -> None:
    asked = read_message(one(tmp_path, f'command = "a"\ngpus = {given}').request)
    assert (asked.wanted_gpus, asked.min_gpus, asked.max_gpus) == expected


@pytest.mark.parametrize("priority", ["0.01", "0.012345678", "1", "1.0000001", "99.99", "100"])
def test_every_priority_is_a_word_that_is_read(tmp_path: Path, priority: str) -> None:
    word = one(tmp_path, f'command = "a"\npriority = {priority}').word
    assert (parse_trial(word, "lr").priority if word else 1.0) == pytest.approx(float(priority), abs=1e-4)


def test_a_grid_a_list_and_a_csv_file(tmp_path: Path) -> None:
    """A CSV file as spreadsheets write it: byte order mark, CRLF, quotes. Its column `name` names trials."""
    (tmp_path / "p.csv").write_bytes(b'\xef\xbb\xbfname, lr,text\r\nx,1e-4,"a, b"\r\ny,-3,\r\n')
    study = read(
        tmp_path,
        b"\xef\xbb\xbf"
        + b"""
        [trial]
        command = "train {lr}"
        environment = { A = "1", B = "1" }
        [grid]
        lr = [1e-4, -1, 0.1]
        fast = [true, "a/b c"]
        one = 7
        [[trials]]
        with = { lr = 5 }
        environment = { B = "2" }
        [[trials]]
        values = "p.csv"
        with = { lr = 9, more = 1 }
        command = ["train", "{lr}", "{text}", "{more}"]
        """.replace(b"\n", b"\r\n"),
    )
    names = [trial.name for trial in study.trials]
    assert names[:2] == ["lr=0.0001,fast=True,one=7", "lr=0.0001,fast=a_b_c,one=7"]
    assert names[5:] == ["lr=0.1,fast=a_b_c,one=7", "lr=5", "x", "y"]
    assert [trial.command[-1] for trial in study.trials[:7:2]] == [
        *("train 0.0001", "train -1", "train 0.1", "train 5")
    ]
    assert study.trials[6].environment == {"A": "1", "B": "2"}
    assert [t.command[1:] for t in study.trials[7:]] == [("1e-4", "a, b", "1"), ("-3", "", "1")]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("..", "_."),
        (".x", "_x"),
        ("a b/c", "a_b_c"),
        ("größe", "gr__e"),
        ("-x", "-x"),
        ("x" * 200, "x" * 200),
    ],
)
def test_names_are_those_of_files(tmp_path: Path, given: str, name: str) -> None:
    assert one(tmp_path, f'command = "a"\nname = "{given}"').name == name


def test_long_names_stay_apart(tmp_path: Path) -> None:
    """Also from one start to the next, whatever else there is."""
    values = [f'"{"x" * 300}{end}"' for end in "ab"]
    text = '[trial]\ncommand = "a"\n[grid]\nv = '
    both = [trial.name for trial in read(tmp_path, f"{text}[{', '.join(values)}]").trials]
    assert len({*both}) == 2 and {len(name) for name in both} == {200}
    assert read(tmp_path, text + values[1]).trials[0].name == both[1]


@pytest.mark.parametrize("given", ["a b", "it's", '"', "$HOME;`id`", "\\", "*", "", "-1", "ä\n b"])
@pytest.mark.parametrize("around", ["{v}", "'{v}'", '"{v}"', '"\\"{v}"', "'\"'{v}"])
def test_a_value_is_one_word_in_a_shell(tmp_path: Path, given: str, around: str) -> None:
    """Between quotes as without."""
    text = f'''[trial]\ncommand = """printf '<%s>' {around.replace(chr(92), chr(92) * 2)}"""
    [grid]\nv = '''
    quoted = given.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    command = read(tmp_path, f'{text}"{quoted}"').trials[0].command
    before = '"' if around in ('"\\"{v}"', "'\"'{v}") else ""
    assert "\n".join(printed(command)) == f"<{before}{given}>"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("echo $((1 + 2)) | tr 3 4 && echo ~+", ["4", "."]),
        ("V=5 sh -c 'echo $V' # words", ["5"]),
        ("for i in 1 2; do echo {$i}; done", ["{1}", "{2}"]),
        ('echo \'{"lr": 0.1}\' "a  b"', ['{"lr": 0.1} a  b']),
        ("echo a &> /dev/null; echo b", ["b"]),
        ("exit 0", []),
    ],
)
def test_a_line_is_what_one_would_type(tmp_path: Path, line: str, expected: list[str]) -> None:
    (trial,) = read_commands(["\ufeff# all\n", "\n", f"  {line}\r\n"], tmp_path, None).trials
    assert (trial.name, trial.directory) == ("line3", str(Path.cwd()))
    assert [text.replace(str(Path.cwd()), ".") for text in printed(trial.command)] == expected


def test_no_shell_sees_a_list(tmp_path: Path) -> None:
    trial = one(tmp_path, """command = ["echo", "$HOME; {v}", "{{v}}", "*"]\nwith = { v = "a 'b'" }""")
    assert trial.command == ("echo", "$HOME; a 'b'", "{v}", "*")


def test_values_are_formatted(tmp_path: Path) -> None:
    trial = one(tmp_path, 'command = "{lr:.1e} {n:03} {{x}}"\nwith = { lr = 0.00012, n = 7 }')
    assert trial.command[2] == "1.2e-04 007 {x}"


def test_a_policy_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file names it from its own folder on, the command line from the current one."""
    (tmp_path / "mine.py").write_text("class Mine:\n    def plan(self, snapshot, memory): ...\n")
    text = '[policy]\nname = "mine.py:Mine"\n' + ONE + 'command = "a"'
    elsewhere = tmp_path / "a"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    make_policy(read(tmp_path, text).settings.policy)
    make_policy(read(tmp_path, ONE + 'command = "a"', "../mine.py:Mine").settings.policy)
    assert read(tmp_path, text, "tiresias-las").settings.policy.name == "tiresias-las"


def test_tables_of_the_settings(tmp_path: Path) -> None:
    study = read(tmp_path, "[policy]\ngandiva.slice_seconds = 7\n[suspend]\n" + ONE + 'command = "a"')
    assert study.settings.policy.gandiva.slice_seconds == 7


def test_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.y.toml").write_text(ONE + 'command = "{store}"')
    study, folder = read_study(Path("x.y.toml"), None, None)
    assert (study.name, folder) == ("x.y", tmp_path / "x.y")
    study, folder = read_study(Path("x.y.toml"), Path("s"), None)
    assert (study.name, folder) == ("x.y", tmp_path / "s")
    assert study.trials[0].command[2] == f"{tmp_path}/s/checkpoints/trial1"
    assert read_commands(["a"], tmp_path / "lr-0.1", None).name == "lr-0.1"
    Path("none.toml").write_text(f'[study]\nname = ".."\n{ONE}command = "a"')
    assert read_study(Path("none.toml"), None, None)[1] == tmp_path / "_"
    Path("x").write_text(ONE + 'command = "a"')
    with pytest.raises(StudyError, match="x is to be the study's folder, and is a file"):
        read_study(Path("x"), None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ": there are no trials: it needs [grid] or [[trials]]"),
        ("[study", ": not valid TOML: "),
        (b"\xff\xfe[\0", ": not UTF-8 text (byte 0)"),
        ('[[trials]]\nname = "\xe4"'.encode("latin-1"), ": not UTF-8 text (byte 19)"),
        ("[trail]", ": trail: no such key; did you mean trial?"),
        ("[zzz]", ": zzz: no such key; there are study, policy, suspend, trial, grid, trials"),
        ("[trials]", ": trials: must be a list"),
        ("[[grid]]", ": grid: must be a table"),
        ("trials = [1]", ": trials.0: must be a table"),
        ('[study]\nname = "a b"', ": study.name: must match pattern"),
        ("[study]\nnam = 1", ": study.nam: no such key; did you mean name?"),
        ("[trial]\ngpu = 1", ": [trial]: gpu: no such key; did you mean gpus?"),
        ('[trial]\nname = "a"', ": [trial]: name: no such key; there are command, gpus"),
        ("[grid]\na = []", ": grid.a: the list is empty"),
        ("[grid]\na = [[1]]", ": trial 1: with.a: must be a string, a number, true or false"),
        ("[grid]\na = nan", ": trial 1: with.a: must be a string"),
        ("[grid]\nstore = 1", ": trial 1: store: no value can be called so"),
        (ONE + "with = { name = 1 }", ": trial 1: name: no value can be called so"),
        (ONE, ": trial 1: command: is missing, in [trial] or here"),
        (ONE + 'name = "b"\ncommand = " # x"', ": b: command: is missing"),
        (ONE + "command = ['', 'a']", ": trial 1: command: is missing"),
        (ONE + "command = 1", ": trial 1: command: must be a string for the shell, or a list of strings"),
        (ONE + "command = ['a', 1]", ": trial 1: command: must be a string for the shell"),
        (ONE + 'command = "a\\u0000"', ": trial 1: command: must be UTF-8 text"),
        (ONE + """command = "echo it's\"""", ": trial 1: command: No closing quotation"),
        (
            ONE + "command = '{\"lr\": 1}'",
            ': trial 1: command: {"lr"} is no value of the trial (there are name',
        ),
        (
            ONE + "command = '${HOME}'",
            "command: {HOME} is no value of the trial (there are name, store); for a",
        ),
        (ONE + 'command = "{}"', ": trial 1: command: {} is no value"),
        (ONE + 'command = "{name.x}"', ": trial 1: command: {name.x} is no value"),
        (ONE + 'command = "a }"', ": trial 1: command: Single '}' encountered in format string; for a brace"),
        (ONE + 'command = "{name:d}"', ": trial 1: command: Unknown format code 'd'"),
        (ONE + "command = 'A=1 CUDA_VISIBLE_DEVICES=1 a'", "command: leave CUDA_VISIBLE_DEVICES out"),
        (ONE + "gpus = 0", ': trial 1: gpus = 0: must be a number of GPUs, or a range such as "1-4"'),
        (ONE + "gpus = true", ": trial 1: gpus = True: must be a number of GPUs"),
        (ONE + "gpus = 1.0", ": trial 1: gpus = 1.0: must be a number of GPUs"),
        (ONE + 'gpus = "4-2"', ": trial 1: gpus = '4-2': the first number is the larger one"),
        (ONE + "gpus = 99999", ": trial 1: gpus: must be less than or equal to 65536"),
        (ONE + "weight = 0", ": trial 1: weight: must be greater than or equal to 0.1"),
        (ONE + "priority = 1000", ": trial 1: priority: must be less than or equal to 100"),
        (ONE + "exclusive = 1", ": trial 1: exclusive: must be a valid boolean"),
        (ONE + 'suspend = "x"', ": trial 1: suspend: must be 'cooperative', 'transparent' or 'requeue'"),
        (ONE + 'gpu_types = "a"', ": trial 1: gpu_types: must be a list"),
        (ONE + 'gpu_types = ["a b"]', ": trial 1: gpu_types.0: must match pattern"),
        (ONE + f"gpu_types = {['x' * 60] * 32}", ": trial 1: request of 2"),
        (ONE + 'memory = "lots"', ': trial 1: memory: must be a number of bytes or a size such as "512MiB"'),
        (ONE + "cpus = 0", ": trial 1: cpus: must be greater than or equal to 1"),
        (ONE + 'directory = "no/such"', "/no/such"),
        (ONE + 'directory = "~nobody-here/x"', "directory = '~nobody-here/x': there is no such user"),
        (ONE + 'environment = { "A=B" = "1" }', ": trial 1: environment: 'A=B' cannot be set here"),
        (ONE + 'environment = { CUDA_VISIBLE_DEVICES = "1" }', "'CUDA_VISIBLE_DEVICES' cannot be set here"),
        (ONE + "environment = { A = [] }", ": trial 1: environment.A: must be a string, a number"),
        (ONE + 'command = "a"\n' + ONE + 'name = "trial1"\ncommand = "b"', ": 2 trials are called trial1"),
        ('[trial]\ncommand = "a"\n[grid]\nv = ["a/b", "a b"]', ": 2 trials are called v=a_b: give them"),
        (
            f"[grid]\n{''.join(f'k{i} = {[*range(10)]}{chr(10)}' for i in range(20))}",
            "more than 100000 trials",
        ),
        (
            ONE + 'values = "x.csv"\nname = "a"',
            ": trials.1: values names a CSV file, and then there is no name",
        ),
        (ONE + "values = 1", ": trials.1: values names a CSV file"),
        (ONE + 'values = "x.csv"\nwith = 1', ": trials.1: with: must be a table"),
        (ONE + 'values = "x.csv"', "x.csv: No such file or directory"),
        (ONE + 'values = ""', "Is a directory"),
        (ONE + 'command = "a"\n[policy]\nname = "fifi"', "policy.name"),
        (ONE + 'command = "a"\n[policy]\nname = "no.py:X"', "no.py"),
        (ONE + 'command = "a"\n[suspend]\nmode = "slurm"', ": suspend.mode: is not to be chosen here"),
    ],
)
def test_mistakes(tmp_path: Path, text: str | bytes, said: str) -> None:
    """The message has the file, the place in it and what is allowed, in one line."""
    with pytest.raises(StudyError) as caught:
        read(tmp_path, text if isinstance(text, bytes) else _with_command(text))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/lr.toml") and said in message and "\n" not in message


def _with_command(text: str) -> str:
    """A trial without a command gets one, where another key is wrong."""
    lacks = text.startswith(ONE) and text != ONE and "command" not in text
    return text.replace(ONE, ONE + 'command = "a"\n') if lacks else text


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (b"", "it needs a line of names"),
        (b"lr\n", "it needs a line of names"),
        (b"lr,lr\n1,2\n", "it needs a line of names, each once"),
        (b"lr,b\n1\n", "each line needs a value for each of its first line's names"),
        (b"lr\n1,2\n", "each line needs a value"),
        (b"lr\n\xff\n", "not UTF-8 text (byte 3)"),
        (b'lr\n"' + b"x" * 200_000, "field larger than field limit"),
        (b"lr;b\n1;2\n", "{lr} is no value of the trial (there are lr;b, name, store)"),
        (b"lr\n1\n1\n", "2 trials are called lr=1"),
    ],
)
def test_mistakes_in_a_csv_file(tmp_path: Path, rows: bytes, said: str) -> None:
    (tmp_path / "p.csv").write_bytes(rows)
    with pytest.raises(StudyError, match=f"^{tmp_path}/lr.toml: .*{re.escape(said)}"):
        read(tmp_path, ONE + 'values = "p.csv"\ncommand = "a {lr}"')


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, said in ((tmp_path, "Is a directory"), (tmp_path / "no", "No such file")):
        with pytest.raises(StudyError, match=f"cannot read {path}: {said}"):
            read_study(path, None, None)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "there are no commands on standard input"),
        (["# a\n", " \n"], "there are no commands on standard input"),
        (["a\n", "echo 'b\n"], "standard input: line2: command: No closing quotation"),
        (["a \\\n"], "standard input: line1: command: No escaped character"),
        (["a \udcff\n"], "standard input: line1: command: must be UTF-8 text"),
        (["CUDA_VISIBLE_DEVICES=0 a\n"], "standard input: line1: command: leave CUDA_VISIBLE_DEVICES out"),
    ],
)
def test_mistakes_in_commands(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(StudyError, match=re.escape(said)):
        read_commands(lines, tmp_path / "lr", None)


def test_trials_that_are_submitted(tmp_path: Path) -> None:
    """They have what `[trial]` says, and their commands are as they are, unless there are values for them."""
    text = "[trial]\ncommand = 'a'\ngpus = 2\nenvironment = { A = 'b' }\n"
    with pytest.raises(StudyError, match="there are no trials"):
        read(tmp_path, text)
    study, folder = read_study(tmp_path / "lr.toml", None, None, is_open=True)
    spec = submitted(study, folder, {"command": ["x", "{a}"], "directory": str(tmp_path)}, 7)
    assert (spec.name, spec.command, spec.environment) == ("trial7", ("x", "{a}"), {"A": "b"})
    assert read_message(spec.request).wanted_gpus == 2
    spec = submitted(study, folder, {"command": ["{store}{a}"], "with": {"a": 1}}, 1)
    assert spec.command == (f"{folder}/checkpoints/a=11",)
    assert read_commands([], folder, None, is_open=True).trials == ()
    for table, said in (({"values": "x"}, "values"), ({"x": 1}, "submitted: trial 1: x: no such key")):
        with pytest.raises(StudyError, match=said):
            submitted(study, folder, table, 1)


def test_too_many_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TRIALS", 2)
    with pytest.raises(StudyError, match="more than 2 trials"):
        read_commands(["a", "b", "c"], tmp_path, None)
    with pytest.raises(StudyError, match="more than 2 trials"):
        read(tmp_path, '[trial]\ncommand = "a"\n[grid]\nv = [1, 2]\n' + ONE)
