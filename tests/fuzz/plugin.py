# SPDX-License-Identifier: GPL-2.0-or-later
"""What users say to sbatch: the SPANK plugin (compiled with sanitizers) and the job_submit module."""

from __future__ import annotations

import atexit
import functools
import random
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from controller.observe.requests import parse_request
from tests.fuzz import mutations
from tests.fuzz.target import Target
from tests.unit.slurm_plugin.standin import Answer, Slurmctld

ROOT = Path(__file__).resolve().parents[2]
SANITIZE = "-fsanitize=address,undefined -fno-sanitize-recover=all"

# The first two values of each are right.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "gandiva": ("",),
    "no-gandiva": ("",),
    "gandiva-weight": ("2", "0.1", "100", "99.99", "0.05", "100.1", "1e1"),
    "gandiva-gpus": ("1-4", "2-2", "4096-4096", "4-1", "1-4097"),
    "gandiva-pack": ("yes", "no"),
    "gandiva-migrate": ("yes", "no"),
    "gandiva-suspend": ("cooperative", "transparent", "requeue"),
    "gandiva-gpu-types": ("a100", "a100,h100", ",".join(f"m{i}" for i in range(16)), "a" * 32),
    "gandiva-model": ("resnet50", "a" * 64, "A.b_c+d-e"),
    "gandiva-search": ("lr", "a" * 64, "A.b_c+d-e"),
}


@functools.cache
def _host() -> tuple[Path, Path] | None:
    """The plugin and its host, built once with sanitizers; None where they cannot be built."""
    if shutil.which("make") is None or shutil.which("cc") is None:
        return None
    build = Path(tempfile.mkdtemp(prefix="fuzz-spank-"))
    atexit.register(shutil.rmtree, build, ignore_errors=True)
    make = ["make", "-s", "-C", str(ROOT / "slurm_plugin"), f"BUILD={build}"]
    flags = [f"CFLAGS=-O1 -g {SANITIZE}", f"LDFLAGS={SANITIZE}"]
    for words in (["headers"], [*flags, "all", f"{build}/fake_slurm"]):
        if subprocess.run([*make, *words], capture_output=True, timeout=300).returncode:
            return None
    return build / "spank_gandiva.so", build / "fake_slurm"


def available() -> bool:
    """Whether there are headers, a compiler and a Lua interpreter."""
    return _host() is not None and _lua() is not None


def _given(dice: random.Random) -> dict[str, str]:
    """Options as a user might give them."""
    chosen = dice.sample(list(OPTIONS), dice.randint(0, 4))
    if dice.random() < 0.3:
        return {name: dice.choice(OPTIONS[name][:2]) for name in chosen if name != "no-gandiva"}
    return {name: mutations.pick(dice, OPTIONS[name]).replace("\0", "") for name in chosen}


def _bytes(text: str, times: int = 1) -> bytes:
    """As it goes to a program: Linux takes no longer words than this."""
    return (text.encode("utf-8", "surrogatepass") * times)[:100_000]


def _spank(dice: random.Random, folder: Path) -> bool:
    """Refused with one message, or taken; never a crash, an overrun or a leak of the sanitizers."""
    built = _host()
    assert built is not None, "needs a C compiler, make and Slurm's headers"
    plugin, host = built
    context = dice.choice(("local", "allocator", "remote", "remote"))
    argv = [bytes(host), bytes(plugin), context.encode()]
    run_dir = folder / "run"
    if dice.random() < 0.7:
        argv += [b"-a", _bytes(f"run_dir={run_dir}{dice.choice(('', '/%n', '/%', '%n%n'))}")]
    if dice.random() < 0.2:
        argv += [b"-a", _bytes(mutations.word(dice).replace("\0", "") or "x")]
    environ = {b"PATH": b"/usr/bin:/bin", b"ASAN_OPTIONS": b"detect_leaks=0:exitcode=99"}
    environ[b"UBSAN_OPTIONS"] = b"exitcode=99:print_stacktrace=1"
    for name, value in _given(dice).items():
        argv += [b"-o", _bytes(f"{name}={value}" if value or dice.random() < 0.5 else name)]
    if context == "remote":
        block = run_dir / "7"
        block.mkdir(parents=True, exist_ok=True)
        visible = mutations.text(dice, "0,1\n").encode("utf-8", "surrogatepass")
        (block / "visible").write_bytes(visible if dice.random() < 0.9 else visible * 3000)
        devices = mutations.pick(dice, ("0,1,2,3", "2,3", "GPU-aa,GPU-bb", "")).replace("\0", "")
        environ[b"CUDA_VISIBLE_DEVICES"] = _bytes(devices, dice.choice((1, 1, 200)))
        environ[b"PYTHONPATH"] = _bytes(mutations.word(dice).replace("\0", ""), dice.choice((1, 500)))
        environ[b"SLURMD_NODENAME"] = _bytes(mutations.pick(dice, ("n1",)).replace("\0", ""))
        argv += [b"-i", b"job=" + str(dice.choice((7, 7, 7, 0, -1, 2**31, 2**63 - 1))).encode()]
    done = subprocess.run(argv, capture_output=True, env=environ, timeout=60)
    if b"fake_slurm: no such option" in done.stderr:
        return False  # the plugin refused its plugstack line and registered nothing
    assert done.returncode in (0, 1), f"{argv}: exit status {done.returncode}: {done.stderr[-1500:]!r}"
    assert b"Sanitizer" not in done.stderr and b"runtime error" not in done.stderr, done.stderr[-1500:]
    if done.returncode:
        assert b"gandiva: " in done.stderr, f"{argv}: refused without a word"
        said = done.stderr.count(b"error: ")
        # (slurmstepd goes on after an option that is refused.)
        assert said == 1 or context == "remote", f"{argv}: {said} messages: {done.stderr!r}"
    return done.returncode == 0


@functools.cache
def _lua() -> Slurmctld | None:
    for name in ("lua5.4", "lua5.3"):
        path = shutil.which(name)
        if path is not None:
            slurmctld = Slurmctld(path)
            atexit.register(slurmctld.close)
            return slurmctld
    return None


GPU_FIELDS = ("tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task", "gres")
COUNTS = (0, 1, 2, 7, 64, 65536, 2**31 - 1, 2**32 - 3)


def _job(dice: random.Random) -> dict[str, object]:
    """A job description as slurmctld gives it to the module."""
    if dice.random() < 0.3:
        return {"partition": "both", "tres_per_node": "gres/gpu:2", "min_nodes": 1, "max_nodes": 1}
    job: dict[str, object] = {"partition": dice.choice(("gpu", "both", "cpu", "gpu,both", "nowhere"))}
    for name in dice.sample(GPU_FIELDS, dice.randint(0, 2)):
        job[name] = _words(
            mutations.pick(
                dice, ("gres/gpu:2", "gres/gpu:a100:4", "gres/gpu", "gpu:1,shard:2", "gpu:999999999P")
            )
        )
    for name in dice.sample(("min_nodes", "max_nodes", "num_tasks", "cpus_per_task", "ntasks_per_node"), 2):
        if dice.random() < 0.5:
            job[name] = dice.choice(COUNTS)
    for name in ("req_nodes", "exc_nodes", "name", "features", "comment", "admin_comment", "cpus_per_tres"):
        if dice.random() < 0.2:
            job[name] = _words(mutations.pick(dice, ("n1", "n[1-2]", "gpu:2", "x")))
    return job


def _words(text: str) -> str:
    """As Slurm would pass it on: no zero bytes, and what is no UTF-8 as such is not for this test."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def _no_error_of_its_own(answer: Answer) -> None:
    """Nothing raised, and nothing that the module's outermost function had to catch."""
    assert not answer.raised, answer.problem
    assert not [line for line in answer.logged if "internal error" in line], answer.logged


PREFIX = "_SLURM_SPANK_OPTION_gandiva_"
WITH_VALUES = tuple(name.replace("-", "_") for name, values in OPTIONS.items() if values != ("",))
"""As slurmctld has the flags: with underscores."""
_FLAGS_READ: Counter[str] = Counter()
"""What the module's parsers made of the values of each flag."""


def _count_refused(given: Mapping[str, str], said: Sequence[str]) -> None:
    for name in given:
        written = f"--{name.replace('_', '-')}="
        if any(written in line and ": expected " in line for line in said):
            _FLAGS_READ[f"{name}: value refused"] += 1


def _submit(dice: random.Random, _folder: Path) -> bool:
    """The module never raises; a job it takes has a request that the controller can read."""
    slurmctld = _lua()
    assert slurmctld is not None, "needs a Lua interpreter"
    given = {name.replace("-", "_"): _words(value) for name, value in _given(dice).items()}
    entries = [f"{PREFIX}{name}={value}" for name, value in given.items()]
    if dice.random() < 0.2:
        entries.append(_words(mutations.text(dice, f"{PREFIX}gandiva_weight=1")))
    job = _job(dice)
    if dice.random() < 0.2:
        record = {key: value for key, value in _job(dice).items() if isinstance(value, str)}
        record["admin_comment"] = _words(mutations.text(dice, 'gandiva:{"v":1,"gpus_per_node":1,"nodes":1}'))
        answer = slurmctld.modify(record, uid=dice.choice((0, 1000, 1001)), **job)
        _no_error_of_its_own(answer)
        return answer.rc == 0
    answer = slurmctld.submit(entries, uid=1000, **job)
    _no_error_of_its_own(answer)
    if answer.rc != 0:
        assert answer.said, f"refused without a word: {entries} {job}"
        _count_refused(given, answer.said)
        return False
    _FLAGS_READ.update(f"{name}: value accepted" for name in given)
    comment = str(answer.fields.get("admin_comment", ""))
    if comment.startswith("gandiva:"):
        assert "\n" not in comment and len(comment.encode()) <= 1024 + len("gandiva:")
        parse_request(comment)
        assert answer.fields.get("priority") == 0, "taken, but not held"
    return True


TARGETS = (
    Target("spank", "sbatch's flags and a task's surroundings, with address and UB sanitizers", _spank, 12),
    Target(
        "submit",
        "jobs and flags, through the job_submit module",
        _submit,
        12,
        _FLAGS_READ,
        tuple(f"{name}: value {how}" for name in WITH_VALUES for how in ("accepted", "refused")),
    ),
)
