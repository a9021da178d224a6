# SPDX-License-Identifier: GPL-2.0-or-later
"""The study file: which trials there are, and how they share the GPUs.

[study]
name = "lr"                  # of the folder with all that the study makes; default: the file's name
[policy]                     # as in gandiva.toml
name = "tiresias-las"
[trial]                      # what all trials have, unless they say otherwise
command = "python train.py --lr {lr} --seed {seed}"
gpus = "1-2"
[grid]                       # a trial for each combination
lr = [0.1, 0.03]
seed = [1, 2]
[[trials]]                   # single ones, or one for each line of a CSV file
name = "baseline"
with = { lr = 0.05, seed = 1 }

A command that is a string is for the shell, as it would be typed; its values are quoted for it. A list is the
words of a command, and no shell sees it.
"""

import csv
import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from controller.cluster.raw import PREFIX
from controller.cluster.request import GpuType, InvalidRequest, Message, Name, read_message
from controller.cluster.trial import TrialSpec
from controller.errors import GandivaError, SettingsError
from controller.model import MAX_WEIGHT, SuspendMethod, value
from controller.policies.assemble import make_policy
from controller.policies.site import beside
from controller.run.command import require_command, require_text, words
from controller.settings import base
from controller.settings.base import Section, parse_toml, read_file, wrong
from controller.settings.loading import check_values, with_parts_of
from controller.settings.schema import Settings
from gandiva.trials import with_word

MAX_FILE_BYTES = 16 << 20
MAX_TRIALS = 100_000
INTERVAL_SECONDS = 0.25
MAX_NAME_CHARS = 200
OF_EACH = ("name", "store")
"""Values that every trial has besides its own."""
_SUSPEND = {"unsuspendable": "store", "unsuspendable_tries": 1, "save_every_seconds": 1800.0}
"""A trial with a store that does not fit into host memory leaves its GPUs all the same, and at once; and
where a machine fails it loses half an hour at most."""
_GPUS = re.compile(r"([1-9]\d{0,4})(?:-([1-9]\d{0,4}))?", re.ASCII)
_VARIABLE = re.compile(r"[^=\0]+")


def _plain(given: Any) -> Any:
    if not isinstance(given, str | int | float) or (isinstance(given, float) and not math.isfinite(given)):
        raise ValueError("must be a string, a number, true or false")
    return given


Value = Annotated[Any, AfterValidator(_plain), AfterValidator(require_text)]
Values = Annotated[dict[str, Value], Field(max_length=100)]


class StudyError(GandivaError):
    """The study file is wrong, or what else was asked for; nothing was started."""


def _sizeable(size: int) -> int:
    if 0 < size < 1 << 20:
        raise ValueError('must be at least 1 MiB: a size such as "16GiB", with its unit')
    return size


class _StudyTable(Section):
    name: Name | None = None
    launch: Literal["step", "child"] = "step"
    host_memory: Annotated[base.ByteSize, AfterValidator(_sizeable)] | None = None


class _TrialTable(Section):
    """Of `[trial]`, and of each of `[[trials]]` besides what says which trial it is."""

    command: Annotated[Any, AfterValidator(require_command)] = ""
    gpus: Any = 1
    weight: Annotated[float, Field(ge=0.1, le=MAX_WEIGHT)] = 1.0
    priority: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    exclusive: bool = False
    pack: bool | None = None
    migrate: bool | None = None
    suspend: Annotated[SuspendMethod, Field(strict=False)] | None = None
    gpu_types: tuple[GpuType, ...] = Field(default=(), strict=False)
    model: Name | None = None
    cpus: Annotated[int, Field(ge=1, le=65536)] = 1
    memory: Annotated[base.ByteSize, AfterValidator(_sizeable)] = 0
    directory: Annotated[str, AfterValidator(require_text)] = "."
    environment: dict[str, Value] = base.table()


class _OneTrial(_TrialTable):
    name: str | None = None
    with_: Values = Field({}, alias="with")
    values: str | None = None


class _File(Section):
    study: _StudyTable = _StudyTable()
    policy: dict[str, Any] = base.table()
    suspend: dict[str, Any] = base.table()
    trial: dict[str, Any] = base.table()
    grid: dict[str, Any] = base.table()
    trials: tuple[dict[str, Any], ...] = Field(default=(), strict=False)


@value
class Study:
    """All that a study file says."""

    name: str
    settings: Settings
    trials: tuple[TrialSpec, ...]
    launch: Literal["step", "child"] = "step"
    """In an allocation: as steps of it, or as child processes on this node."""
    host_memory_bytes: int | None = None
    """So much of the GPU memory of trials that are off their GPUs may be in host memory, on each node."""
    common: Mapping[str, Any] = field(default_factory=dict)
    """What `[trial]` says."""


def read_study(
    path: Path, folder: Path | None, policy: str | None, *, is_open: bool = False
) -> tuple[Study, Path]:
    """A study, and its folder. `folder`: in place of the one that is named as the study, beside the file.
    `policy`: in place of the file's. `is_open`: trials may come later. Raises StudyError naming place and
    allowed values."""
    text = _decoded(read_file(path, MAX_FILE_BYTES, StudyError), path)
    file = _checked(_File, parse_toml(text, lambda problem: StudyError(f"{path}: {problem}")), str(path))
    _checked(_TrialTable, file.trial, f"{path}: [trial]")
    name = _name_of(file.study.name or path.stem)
    folder = _folder(folder or path.absolute().parent / name)
    tables = itertools.chain(_of_grid(file.grid, path), _of_list(file, path))
    trials = [_spec(file.trial, table, name, folder, path, i) for i, table in enumerate(tables, 1)]
    if not trials and not is_open:
        raise StudyError(f"{path}: there are no trials: it needs [grid] or [[trials]]")
    specs = _distinct(trials, str(path))
    said = file.study
    settings = _settings(file, path, policy)
    return Study(name, settings, specs, said.launch, said.host_memory, file.trial), folder


def read_commands(lines: Iterable[str], folder: Path, policy: str | None, *, is_open: bool = False) -> Study:
    """A trial for each line, which the shell runs. Empty lines and comments are none. `is_open`: trials may
    come later. Raises StudyError."""
    folder = _folder(folder)
    name, here, trials = _name_of(folder.name), Path("standard input"), []
    for number, line in enumerate(lines, 1):
        command = line.strip().lstrip("\ufeff")
        if command and not command.startswith("#"):
            table = {"name": f"line{number}", "command": command}
            trials.append(_spec({}, table, name, folder, here, number, as_is=True))
    if not trials and not is_open:
        raise StudyError("there are no commands on standard input: it needs one on each line, or name a file")
    return Study(name, _settings(_File(), here, policy), _distinct(trials, str(here)))


def submitted(study: Study, folder: Path, table: Mapping[str, Any], number: int) -> TrialSpec:
    """A trial that is asked for while the study runs. `table`: as of `[[trials]]`; the command is as it is,
    unless there are values for it. Raises StudyError."""
    where = Path("submitted")
    if "values" in table:
        raise StudyError(f"{where}: values: is for study files")
    return _spec(study.common, table, study.name, folder, where, number, as_is=not table.get("with"))


def _decoded(raw: bytes, path: Path) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise StudyError(f"{path}: not UTF-8 text (byte {error.start})") from None


def _name_of(text: str) -> str:
    return re.sub(r"^\.+|[^A-Za-z0-9._+-]", "_", text)[:64] or "study"


def _folder(path: Path) -> Path:
    """Raises StudyError."""
    if path.exists() and not path.is_dir():
        raise StudyError(f"{path} is to be the study's folder, and is a file: name another with --study")
    return path.absolute()


def _settings(file: _File, path: Path, policy: str | None) -> Settings:
    if wrong := {"mode"} & file.suspend.keys():
        raise StudyError(
            f"{path}: suspend.{min(wrong)}: is not to be chosen here: trials pause on their node"
        )
    tables: dict[str, Any] = {
        "policy": dict(file.policy),
        "suspend": {**_SUSPEND, **file.suspend, "mode": "node"},
        "loop": {"interval_seconds": INTERVAL_SECONDS},
    }
    if policy is not None:
        tables["policy"]["name"] = beside(policy, Path.cwd())
    try:
        settings = check_values(with_parts_of(path.absolute().parent, tables), str(path))
        make_policy(settings.policy)  # parts of one's own are there, and can be loaded
        return settings
    except SettingsError as error:
        raise StudyError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from error
    except ModuleNotFoundError as error:
        raise StudyError(
            f'policy {tables["policy"].get("name")} needs the extra "sim": pip install '
            f"'gandiva-slurm[run,sim]' (this Python has no module {error.name})"
        ) from error


def _of_grid(grid: Mapping[str, Any], path: Path) -> Iterator[dict[str, Any]]:
    choices = {name: given if isinstance(given, list) else [given] for name, given in grid.items()}
    for name, given in choices.items():
        if not given:
            raise StudyError(f"{path}: grid.{name}: the list is empty")
    _require_few(math.prod(map(len, choices.values())), path)
    for values in itertools.product(*choices.values()) if grid else ():
        yield {"with": dict(zip(choices, values, strict=True))}


def _of_list(file: _File, path: Path) -> Iterator[dict[str, Any]]:
    for index, table in enumerate(file.trials, 1):
        if (named := table.get("values")) is None:
            yield table
            continue
        where = f"{path}: trials.{index}"
        if not isinstance(named, str) or "name" in table:
            raise StudyError(f"{where}: values names a CSV file, and then there is no name")
        rest = {key: given for key, given in table.items() if key != "values"}
        common = _checked(_OneTrial, rest, where).with_
        for row in _rows(path.absolute().parent / named, f"{where}.values"):
            called = {"name": row.pop("name")} if "name" in row else {}
            yield {**rest, **called, "with": {**common, **row}}


def _rows(path: Path, where: str) -> list[dict[str, str]]:
    """Of a CSV file whose first line has the names."""
    try:
        text = _decoded(read_file(path, MAX_FILE_BYTES, StudyError), path)
        reader = csv.DictReader(text.splitlines(keepends=True), restkey="", skipinitialspace=True)
        rows = list(reader)
    except (StudyError, csv.Error) as error:
        raise StudyError(f"{where}: {error}") from None
    names = reader.fieldnames or ()
    if not rows or len({*names}) < len(names):
        raise StudyError(f"{where}: {path}: it needs a line of names, each once, and lines with their values")
    if any("" in row or None in row.values() for row in rows):
        raise StudyError(f"{where}: {path}: each line needs a value for each of its first line's names")
    return rows


def _require_few(count: int, path: Path) -> None:
    if count > MAX_TRIALS:
        raise StudyError(f"{path}: there are more than {MAX_TRIALS} trials")


def _spec(
    common: Mapping[str, Any],
    table: Mapping[str, Any],
    study: str,
    folder: Path,
    path: Path,
    number: int,
    *,
    as_is: bool = False,
) -> TrialSpec:
    """`as_is`: the command has no values to be put in."""
    where = f"{path}: {table.get('name') or f'trial {number}'}"
    _require_few(number, path)
    one = _checked(_OneTrial, {**common, **table}, where)
    if taken := sorted({*OF_EACH} & one.with_.keys()):
        raise StudyError(f"{where}: {taken[0]}: no value can be called so: each trial has a {taken[0]}")
    name = _trial_name(one, number)
    values = {**one.with_, "name": name, "store": str(folder / "checkpoints" / name)}
    environment = {**common.get("environment", {}), **one.environment}
    if wrong := [key for key in environment if not _VARIABLE.fullmatch(key) or key == "CUDA_VISIBLE_DEVICES"]:
        raise StudyError(f"{where}: environment: {wrong[0]!r} cannot be set here")
    try:
        directory = path.parent.absolute() / Path(one.directory).expanduser()
    except RuntimeError:
        raise StudyError(f"{where}: directory = {one.directory!r}: there is no such user") from None
    if not directory.is_dir():
        raise StudyError(f"{where}: directory: there is no folder {directory}")
    try:
        command = words(one.command, None if as_is else values)
    except ValueError as error:
        raise StudyError(f"{where}: command: {error}") from None
    return TrialSpec(
        name=name,
        command=command,
        directory=str(directory),
        environment={key: str(given) for key, given in environment.items()},
        request=_request(one, study, where),
        word=_word(one),
        cpus=one.cpus,
        memory_bytes=one.memory,
    )


def _trial_name(one: _OneTrial, number: int) -> str:
    """Fit for a file. What is cut from it is in it as a number: the same at each start."""
    given = one.name or ",".join(f"{key}={given}" for key, given in one.with_.items()) or f"trial{number}"
    name = re.sub(r"^\.|[^A-Za-z0-9._+=,:@-]", "_", given)
    digest = hashlib.sha256(given.encode()).hexdigest()[:8]
    return name if len(name) <= MAX_NAME_CHARS else f"{name[: MAX_NAME_CHARS - 9]}-{digest}"


def _request(one: _OneTrial, study: str, where: str) -> str:
    match = _GPUS.fullmatch(str(one.gpus))
    if match is None or isinstance(one.gpus, bool):
        raise StudyError(f'{where}: gpus = {one.gpus!r}: must be a number of GPUs, or a range such as "1-4"')
    least, most = int(match[1]), int(match[2] or match[1])
    asked = {"v": 1, "gpus": least, "weight": one.weight, "search": study, "gpu_types": list(one.gpu_types)}
    asked |= {"pack": one.pack, "migrate": one.migrate, "suspend": one.suspend, "model": one.model}
    if match[2]:
        asked |= {"min_gpus": least, "max_gpus": most}
    if least > most:
        raise StudyError(f"{where}: gpus = {one.gpus!r}: the first number is the larger one")
    message: Message = _checked(Message, asked, where)
    request = PREFIX + message.model_dump_json(exclude_none=True)
    try:
        read_message(request)
    except InvalidRequest as error:
        raise StudyError(f"{where}: {error}") from None
    return request


def _word(one: _OneTrial) -> str:
    plain = one.priority == 1 and not one.exclusive
    return "" if plain else with_word("", one.priority, exclusive=one.exclusive)


def _checked(kind: type[Any], values: Mapping[str, Any], where: str) -> Any:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
    *above, key = map(str, first["loc"])
    if first["type"] == "extra_forbidden":
        for part in above:
            kind = kind.model_fields[part].annotation
        known = [field.alias or name for name, field in kind.model_fields.items()]
        close = get_close_matches(key, known, n=1, cutoff=0.5)
        said = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        raise StudyError(f"{where}: {'.'.join([*above, key])}: no such key; {said}")
    said = wrong(first).replace("valid tuple", "list").replace("valid dictionary", "table")
    raise StudyError(f"{where}: {'.'.join([*above, key])}: {said}")


def _distinct(trials: list[TrialSpec], where: str) -> tuple[TrialSpec, ...]:
    for name, count in Counter(trial.name for trial in trials).most_common(1):
        if count > 1:
            raise StudyError(f"{where}: {count} trials are called {name}: give them names of their own")
    return tuple(trials)
