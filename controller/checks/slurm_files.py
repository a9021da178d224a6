# SPDX-License-Identifier: GPL-2.0-or-later
"""The files that Slurm loads: plugstack, the SPANK plugin, job_submit.lua, prolog and epilog.

Reads files of this host only: where Slurm's folder is not shared, run the check on slurmctld's host and on a
login node too.
"""

import contextlib
import glob
import os
import pwd
import re
from collections.abc import Iterator
from pathlib import Path

from controller import __version__
from controller.checks.finding import Finding, Subject
from controller.checks.slurm_options import RECONFIGURE, RESTART, SlurmOptions
from controller.nodes.installed import PLUGIN, plugin_built_for

MAX_BYTES = 1 << 20
MAX_INCLUDES = 200
_NO_CODE = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|--\[(=*)\[.*?\]\2\]|--[^\n]*|[ \t]+(?=\()""", re.DOTALL
)
"""Of Lua: comments, and blanks before brackets; strings (the group) stay."""
_FUNCTION = re.compile(r"^(?:local )?function ([\w.:]+)", re.MULTILINE)
_SLURMS = frozenset({"slurm_job_submit", "slurm_job_modify"})
_NO_RULE = frozenset({"local", "rc", "if", "slurm", "SUCCESS", "then", "return", "end"})
"""Words in slurm_job_modify beside its call."""
_TRUSTS = "if gandiva.trusts(modify_uid) then return slurm.SUCCESS end"
_MODIFY = f"{_TRUSTS}; return gandiva.job_modify(job_desc, job_rec, part_list, modify_uid)"


def judge_files(options: SlurmOptions, host: str, user: str) -> Iterator[Finding]:
    """All of them. `host`: the name of this host. `user`: the daemon's."""
    yield _plugstack(Subject(host, "plugstack"), options)
    yield _plugin(options, host)
    yield from _job_submit(options, host, user)
    yield _gres_conf(Subject(host, "gres.conf"), options)
    for key in ("Prolog", "Epilog"):
        yield _script(Subject(host, key), options)


def _text(path: Path) -> str | None:
    """The text of a file; None where there is none. Raises OSError."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return None


def _plugstack(subject: Subject, options: SlurmOptions) -> Finding:
    path = Path(options.get("PlugStackConfig") or options.file.parent / "plugstack.conf")
    line = f"required {PLUGIN} jobside=/opt/gandiva/jobside run_dir=/run/gandiva default=off"
    place = path.parent / "plugstack.conf.d" / "gandiva.conf"
    remedy = f"in {place} (and included by {path}), on every node and login node: {line}"
    try:
        lines = list(_stack_lines(path, [MAX_INCLUDES]))
    except OSError as failure:
        return _unreadable(subject, failure, "run this check on a login node, or as root")
    ours = [(file, words) for file, words in lines if len(words) > 1 and Path(words[1]).name == PLUGIN]
    if not ours:
        return subject.error(f"{path} loads no {PLUGIN}: sbatch knows no --gandiva", remedy)
    if len(ours) > 1:
        files = ", ".join(str(file) for file, _ in ours)
        return subject.error(f"{PLUGIN} is loaded {len(ours)} times: {files}", "keep one of the lines")
    file, words = ours[0]
    if words[0] != "required":
        return subject.warning(
            f"{file}: {' '.join(words[:2])}: where the plugin is missing, a job takes GPUs out of its turn",
            f"in {file}: {' '.join(['required', *words[1:]])}",
        )
    return subject.ok(f"{file} loads {PLUGIN}")


def _stack_lines(path: Path, left: list[int]) -> Iterator[tuple[Path, list[str]]]:
    """The lines of plugstack.conf and of what it includes: the file, and the line's words."""
    left[0] -= 1
    if left[0] < 0:
        return
    for line in (_text(path) or "").splitlines():
        words = line.split("#")[0].split()
        if len(words) == 2 and words[0] == "include":
            for name in _glob(str(path.parent / words[1])):
                yield from _stack_lines(Path(name), left)
        elif words:
            yield path, words


def release_of(version: str) -> str:
    """`26.05.5` -> `26.05`: what must be the same for Slurm to load a plugin."""
    return ".".join(version.split(".")[:2])


def judge_plugin(where: str, built: str, slurm: str) -> Finding:
    """Whether Slurm can load a host's plugin. `built`: the release it is built for, as the agent reports
    it."""
    subject = Subject(where, "SPANK plugin")
    change = f"on {where}: make -C slurm_plugin && make -C slurm_plugin install, with that Slurm's headers"
    if built == "none":
        return subject.error(f"there is no {PLUGIN} among Slurm's plugins", change)
    if re.fullmatch(r"\d+\.\d+\.\d+", built) is None:
        return subject.error(built, change)
    if release_of(built) != release_of(slurm):
        return subject.error(f"{PLUGIN} was built for Slurm {built}, this is {slurm}: it is refused", change)
    return subject.ok(f"built for Slurm {built}")


def _plugin(options: SlurmOptions, host: str) -> Finding:
    folders = tuple(Path(word) for word in options.get("PluginDir").split(":") if word)
    built = plugin_built_for(folders)
    if built == "none":
        # The controller's host submits no jobs, as a rule; the agents examine the nodes.
        return Subject(host, "SPANK plugin").ok("none on this host; sbatch on this host knows no --gandiva")
    return judge_plugin(host, built, options.release)


def _unreadable(subject: Subject, failure: OSError, change: str) -> Finding:
    return subject.warning(f"cannot read {failure.filename}: {failure.strerror}", change)


def _gres_conf(subject: Subject, options: SlurmOptions) -> Finding:
    """The agents know a GPU by its minor number, and Slurm by the number in its type (gres.conf(5))."""
    path = options.file.parent / "gres.conf"
    try:
        text = _text(path)
    except OSError as failure:
        return _unreadable(subject, failure, f"run this check as root on {options.controller}")
    if text is None:
        return subject.ok(f"{path} is not on this host")
    lines = [
        {key.lower(): value for key, _, value in (word.partition("=") for word in line.split("#")[0].split())}
        for line in text.splitlines()
    ]
    shared = {line.get("type", "") for line in lines if line.get("name") == "shard"}
    for number, line in enumerate(lines, start=1):
        kind, file = line.get("type", ""), line.get("file", "")
        device, index = re.search(r"\d+$", file), re.search(r"_(\d+)$", kind)
        if kind in shared and device and index and int(device[0]) != int(index[1]):
            return subject.error(
                f"{path}, line {number}: Type={kind} has File={file}: its jobs get another GPU than the one "
                "that agents look at",
                f"there: File={file[: device.start()]}{index[1]}, {RESTART}",
            )
    return subject.ok("each type has the device file of its number")


def _job_submit(options: SlurmOptions, host: str, user: str) -> Iterator[Finding]:
    subject = Subject(host, "job_submit")
    folder = options.file.parent
    script, module = folder / "job_submit.lua", folder / "gandiva" / "gandiva.lua"
    try:
        text, parts = _text(script), _text(module)
        settings = _text(folder / "gandiva" / "gandiva_settings.lua")
    except OSError as failure:
        yield _unreadable(subject, failure, f"run this check as root on {options.controller}")
        return
    if text is None and parts is None and options.controller.split(".")[0] != host.split(".")[0]:
        yield subject.warning(f"{script} is not on this host", f"run this check on {options.controller} too")
        return
    code = _NO_CODE.sub(lambda match: match[1] or "", text or "")
    wanted = {
        "gandiva.lua": f'local gandiva = dofile("{module}")',
        "gandiva.job_submit(": "local rc = gandiva.job_submit(job_desc, part_list, submit_uid)",
        "gandiva.job_modify(": _MODIFY,
    }
    missing = [line for word, line in wanted.items() if word not in code]
    if missing:
        found = f"there is no {script}" if text is None else f"{script} does not call the module"
        yield subject.error(
            f"{found}: jobs with --gandiva start as ordinary ones",
            f"in {script}: {'; '.join(missing)} (see {folder}/gandiva/job_submit.lua.example)",
        )
    elif misplaced := _misplaced(code):
        yield subject.warning(f"{script}: {misplaced[0]}", f"in {script}: {misplaced[1]}")
    else:
        yield subject.ok(f"{script} calls the module")
    yield _lua_version(Subject(host, "Lua module"), module, parts)
    yield from _trusted(host, folder / "gandiva" / "gandiva_settings.lua", settings, user)


def _misplaced(code: str) -> tuple[str, str] | None:
    """Which of the site's rules has the wrong place, and where it belongs."""
    parts = ["", *_FUNCTION.split(re.sub(r"(\w+) = function\(", r"function \1(", code))]
    functions = dict(zip(parts[::2], parts[1::2], strict=True))
    readers = {""}
    for _ in functions:  # a rule may read by the function of a function
        types = "|".join([r"tres_per_|\.gres\b", *(rf"\b{re.escape(name)}\(" for name in readers if name)])
        readers |= {name for name, body in functions.items() if re.search(types, body)} - _SLURMS
    behind = "".join(body.partition("gandiva.job_submit(")[2] for body in functions.values())
    if re.search(types, behind):
        found = "behind gandiva.job_submit a rule reads tres_per_…, where GPUs have no types any more"
        return found, "move the rule before gandiva.job_submit(…), where it sees what the user wrote"
    body = re.split(r"^end\b", functions.get("slurm_job_modify", ""), flags=re.MULTILINE)[0]
    rules = re.split(r".*\bgandiva\.trusts\(", body.partition(")")[2])[0]
    rules = re.sub(r"gandiva\.job_modify\([^)]*\)|slurm\.log_\w+\(.*", "", rules)
    if _NO_RULE.issuperset(re.findall(r"\w+", rules)):
        return None
    found = "rules in slurm_job_modify can refuse the controller's changes of jobs, by which these get GPUs"
    return found, f"first in slurm_job_modify: {_TRUSTS}"


def _lua_version(subject: Subject, module: Path, text: str | None) -> Finding:
    remedy = f"on slurmctld's host: make -C slurm_plugin install of version {__version__}, restart slurmctld"
    if text is None:
        return subject.error(f"there is no {module}", remedy)
    match = re.search(r'^M\.version = "([^"]{1,40})"', text, re.MULTILINE)
    version = match[1] if match else "unknown"
    if version != __version__:
        return subject.error(f"{module} is of version {version}, this is {__version__}", remedy)
    return subject.ok(f"version {version}")


def _trusted(host: str, path: Path, text: str | None, user: str) -> Iterator[Finding]:
    match = re.search(r"trusted_users\s*=\s*\{([^}]*)\}", text or "")
    words = re.findall(r'"([^"]+)"|(\d+)', match[1]) if match else []
    names = {name or number for name, number in words}
    uid = ""
    with contextlib.suppress(KeyError):
        uid = str(pwd.getpwnam(user).pw_uid)
    if names.isdisjoint((user, uid)):
        yield Subject(host, "Lua module").error(
            f"{path} does not trust {user}: it may not bind or release jobs",
            f'in the cluster description: [gandiva] controller_users = ["{user}"], then gandiva config slurm',
        )


def aliases(options: SlurmOptions) -> dict[str, str]:
    """Other names of GPU models that jobs may write, as the module on this host has them. Raises OSError."""
    text = _text(options.file.parent / "gandiva" / "gandiva_settings.lua") or ""
    table = re.search(r"\baliases = \{([^}]*)\}", text)
    return dict(re.findall(r'([\w.-]+)(?:"\])? = "([\w.-]+)"', table[1])) if table else {}


def _script(subject: Subject, options: SlurmOptions) -> Finding:
    key, name = subject.check, "50-gandiva.sh"
    folder = options.file.parent / f"{key.lower()}.d"
    does = "makes" if key == "Prolog" else "removes"
    remedy = f"in {options.file}: {key}={folder}/*, {RECONFIGURE}, with {folder}/{name} on every node"
    patterns = options.words(key)
    paths = [Path(found) for pattern in patterns for found in _glob(pattern)]
    scripts = [path for path in paths if "gandiva" in path.name]
    if patterns and not paths and not Path(patterns[0]).parent.is_dir():
        return subject.warning(
            f"{patterns[0]} is not on this host", f"see that {name} is there on every node, mode 0755"
        )
    if not scripts:
        found = f"{', '.join(patterns)}: no {name} among them" if patterns else f"no {key} is set"
        return subject.error(f"{found}: nothing {does} the control block of a job", remedy)
    if not os.access(scripts[0], os.X_OK):
        return subject.error(f"{scripts[0]} is not executable", f"chmod 755 {scripts[0]}")
    return subject.ok(str(scripts[0]))


def judge_description(description: Path, options: SlurmOptions, host: str) -> Iterator[Finding]:
    """Whether Slurm's folder has what `gandiva config slurm` makes of the description."""
    subject = Subject(host, "description")
    from controller.slurm_config.description import SlurmConfigError, load
    from controller.slurm_config.fragments import render, with_own_lines

    try:
        files = render(load(description))
    except SlurmConfigError as failure:
        change = f"edit {description}" if description.exists() else "name its file with --cluster"
        yield subject.error(str(failure), change)
        return
    folder = options.file.parent
    differing = False
    for name, text in files.items():
        if name.endswith(".example"):
            continue
        try:
            there = _text(folder / name)
        except OSError as failure:
            yield _unreadable(subject, failure, "run as root")
            continue
        text = with_own_lines(text, there or "")
        if there == text:
            continue
        differing = True
        have = set((there or "").splitlines())
        lines = [line for line in text.splitlines() if line not in have and not line.startswith(("#", "--"))]
        example = lines[0] if lines else "it has additional lines"
        found = (
            f"there is no {folder / name}" if there is None else f"{folder / name} differs from {description}"
        )
        yield subject.warning(
            f"{found}: {example}",
            f"gandiva config slurm --cluster {description} --output-dir {folder} --force, if not intended",
        )
    if not differing:
        yield subject.ok(f"{folder} has what {description} makes")


def _glob(pattern: str) -> list[str]:
    """Slurm's patterns are absolute."""
    return sorted(glob.glob(pattern))  # noqa: PTH207
