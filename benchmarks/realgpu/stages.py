# SPDX-License-Identifier: GPL-2.0-or-later
"""The stages of `benchmarks.realgpu`; each is run by `__main__` as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.realgpu import watch
from benchmarks.realgpu.report import Report
from benchmarks.realgpu.rig import MARK, ROOT, START_SECONDS, Job, Left, Place, Rig, RigError, watcher
from controller.errors import NodeError
from controller.nodes.port import NodeSample

MIB = 1 << 20
GIB = 1 << 30
LINK_SHARE = 0.85
"""What a copy should reach of the link to pinned memory, from the second cycle on."""
HOST_SPARE_BYTES = 8 * GIB


Run = tuple[str, Sequence[str], Mapping[str, Any]]
"""A label, the worker's arguments, its result."""


class CannotRun(Exception):
    """This machine lacks what the stage needs; says what."""


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    model: str = "gpt"
    state_mib: tuple[int, ...] = (2048, 12288, 30720)
    cycles: int = 4
    cycles_keeping_context: int = 2
    chunk_mib: int = 256
    repeats: int = 16
    keep_bytes: int = 4 * GIB
    """A CUDA context with its libraries is smaller."""
    hazard_model: str = "mlp"
    hazards: tuple[str, ...] = ("helper", "graph", "frozen-graph", "default-device", "dtensor", "ddp")
    hazard_mib: int = 256
    driver_hazards: tuple[str, ...] = ("graph",)
    kernel_seconds: float = 12.0
    lock_seconds: float = 3.0
    kill_after_seconds: float = 0.5
    slice_share: float = 0.53
    """State of each of the two jobs, as a share of the GPU's memory."""
    slice_seconds: float = 10.0
    switches: int = 8
    pace_ms: float = 50.0
    packs: tuple[tuple[str, ...], ...] = (
        ("gpt",),
        ("resnet",),
        ("mlp",),
        ("gpt", "gpt"),
        ("gpt", "resnet"),
        ("gpt", "mlp"),
    )
    pack_seconds: float = 6.0
    hold: tuple[str, ...] = ("cuinit", "count", "torch-count", "torch-properties", "context", "fork")
    judge_speed: bool = True
    watch_gap_seconds: float = 0.25


MOCK = Scale(
    model="mock",
    state_mib=(4, 16),
    cycles=2,
    cycles_keeping_context=1,
    chunk_mib=1,
    repeats=2,
    hazard_model="mock",
    hazards=("helper",),
    hazard_mib=1,
    driver_hazards=(),
    kernel_seconds=4.0,
    lock_seconds=1.0,
    kill_after_seconds=0.005,
    slice_seconds=0.5,
    switches=4,
    pace_ms=5.0,
    packs=(("mock",), ("mock", "mock")),
    pack_seconds=1.0,
    hold=("cuinit", "count", "context", "fork"),
    judge_speed=False,
    watch_gap_seconds=10.0,
)
"""On mock GPUs: everything is tried, nothing takes long, and no speed is judged."""


@dataclass(frozen=True)
class Bench:
    """What a stage works with."""

    place: Place
    scale: Scale
    report: Report

    def rig(self) -> Rig:
        return Rig(self.place)

    def environ(self) -> dict[str, str]:
        shown = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(self.place.gpu)}
        return {**os.environ, MARK: self.place.mark, **shown}

    def probe(self, *arguments: str, seconds: float = 90.0) -> str:
        """What a probe prints. Raises CannotRun when it fails."""
        command = [sys.executable, "-m", "benchmarks.realgpu.probe", *arguments]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=self.environ(), capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            raise CannotRun(f"probe {' '.join(arguments)}: no answer within {seconds:g} s") from None
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise CannotRun(f"probe {' '.join(arguments)}: {said[-1]}")
        return done.stdout

    def link(self, *, quick: bool = True) -> dict[str, float]:
        """Bytes per second of this machine's link, measured now."""
        sizes = ("--chunk-mib", str(self.scale.chunk_mib), "--repeats", str(self.scale.repeats))
        found: dict[str, float] = json.loads(self.probe("link", *sizes, *(["--quick"] if quick else [])))
        return found

    def make_room(self, needed_bytes: int) -> None:
        """Some machines get their memory as they use it: use it once. Raises CannotRun when it stays away."""
        before = available_bytes()
        if before < needed_bytes:
            try:
                self.probe("touch", str(needed_bytes), seconds=120.0)
            except CannotRun as error:
                self.report.figure("touching host memory", str(error))
            self.report.figure(
                "MemAvailable, before and after touching it",
                f"{gib(before)}, {gib(available_bytes())}",
                before_bytes=before,
                after_bytes=available_bytes(),
            )
        if available_bytes() < needed_bytes:
            raise CannotRun(
                f"needs {gib(needed_bytes)} of host memory, {gib(available_bytes())} are available"
            )


def available_bytes() -> int:
    """MemAvailable."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def gib(nbytes: float) -> str:
    return f"{nbytes / GIB:.2f} GiB" if nbytes >= GIB / 10 else f"{nbytes / MIB:.1f} MiB"


def rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f} GB/s"


def nvml() -> Any:
    """pynvml, initialised. Raises CannotRun."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        raise CannotRun(f"NVML: {error}") from error
    return pynvml


def held_bytes(bench: Bench) -> dict[int, int | None]:
    """Who holds how much on the GPU, by NVML and not through the agent."""
    pynvml = nvml()
    handle = pynvml.nvmlDeviceGetHandleByIndex(bench.place.gpu)
    return {int(pid): size for pid, size in watch.sample(pynvml, handle)["processes"].items()}


async def same_as_undisturbed(
    bench: Bench,
    rig: Rig,
    runs: Sequence[Run],
    *,
    together: bool = True,
) -> None:
    """Compare results with runs of as many steps that were left alone."""
    arguments = [[*words, "--steps", str(result["steps"])] for _, words, result in runs]
    if together:
        references = await rig.undisturbed(arguments, START_SECONDS)
    else:
        references = [(await rig.undisturbed([words], START_SECONDS))[0] for words in arguments]
    for (label, _, result), words, reference in zip(runs, arguments, references, strict=True):
        differing = differences(result, reference)
        what = f"{label}: digests as undisturbed"
        if not differing:
            text = f"equal after {result['steps']} steps: {', '.join(sorted(result['digests']))}"
            bench.report.check(what, True, text)
            continue
        again = (await rig.undisturbed([words], START_SECONDS))[0]
        if differences(again, reference):
            bench.report.not_run(what, "two undisturbed runs differ: nothing can be compared")
        else:
            bench.report.check(what, False, f"{', '.join(differing)} differ after {result['steps']} steps")


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of what is not equal."""
    names = sorted({*one["digests"], *other["digests"]})
    found = [name for name in names if one["digests"].get(name) != other["digests"].get(name)]
    return found if one["steps"] == other["steps"] else [*found, "steps"]


# --- facts, link -------------------------------------------------------------------------------------------


async def facts(bench: Bench) -> None:
    """Driver, link width, memory figures, and which processes NVML lists."""
    report, pynvml = bench.report, nvml()
    handle = pynvml.nvmlDeviceGetHandleByIndex(bench.place.gpu)
    for name, ask in (
        ("driver", pynvml.nvmlSystemGetDriverVersion),
        ("GPU", lambda: pynvml.nvmlDeviceGetName(handle)),
        ("index, minor number, bus id", lambda: _numbers(pynvml)),
        ("persistence mode", lambda: pynvml.nvmlDeviceGetPersistenceMode(handle)),
        ("PCIe generation", lambda: pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
        ("PCIe generation, most", lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        ("PCIe width", lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        ("memory, version 1", lambda: _memory(pynvml.nvmlDeviceGetMemoryInfo(handle))),
        (
            "memory, version 2",
            lambda: _memory(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)),
        ),
    ):
        try:
            report.figure(name, str(ask()))
        except Exception as error:
            report.figure(name, f"not told: {error}")
    report.figure("host", f"{os.cpu_count()} CPUs, {gib(available_bytes())} available, {platform.release()}")
    report.figure("Python, PyTorch", f"{platform.python_version()}, {_torch_version(bench)}")
    for state in bench.scale.hold:
        try:
            _who_is_listed(bench, state)
        except (CannotRun, ValueError) as error:
            report.not_run(f"NVML's list, {state}", str(error))


def _numbers(pynvml: Any) -> str:
    """Of each GPU that NVML lists, in its order."""
    found = []
    for number in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        minor, bus_id = pynvml.nvmlDeviceGetMinorNumber(handle), pynvml.nvmlDeviceGetPciInfo(handle).busId
        found.append(f"{number} /dev/nvidia{minor} {bus_id}")
    return ", ".join(found)


def _memory(memory: Any) -> str:
    names = [name for name in ("total", "free", "used", "reserved") if hasattr(memory, name)]
    return ", ".join(f"{name} {getattr(memory, name)}" for name in names)


def _torch_version(bench: Bench) -> str:
    code = "import torch; print(torch.__version__, 'NCCL', *torch.cuda.nccl.version())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=bench.environ(), capture_output=True, text=True, timeout=120
    )
    return done.stdout.strip() or f"none ({(done.stderr.strip().splitlines() or ['no word'])[-1]})"


def _who_is_listed(bench: Bench, state: str) -> None:
    before = set(held_bytes(bench))
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.realgpu.probe", "hold", state],
        cwd=ROOT,
        env=bench.environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    try:
        line = process.stdout.readline()
        if not line:
            said = process.stderr.read().decode(errors="replace").strip().splitlines()
            raise CannotRun(said[-1] if said else "it ended without a word")
        pids: list[int] = json.loads(line)
        time.sleep(0.3)
        now = held_bytes(bench)
    finally:
        process.stdin.close()
        process.kill()
        process.wait()
    listed = {name: now.get(pid, -1) for name, pid in zip(("itself", "its child"), pids, strict=False)}
    others = set(now) - before - set(pids)
    text = ", ".join(f"{name} {_listed(size)}" for name, size in listed.items())
    if others:
        text += f"; new besides: pids {sorted(others)}"
    if state == "context":
        # Where NVML counts pids in another namespace, no agent can say whose memory that is.
        held = listed["itself"]
        own = held is None or held > 0
        bench.report.check("NVML's list, context", own, text, **listed)
    else:
        bench.report.figure(f"NVML's list, {state}", text, **listed)


def _listed(size: int | None) -> str:
    if size is None:
        return "listed without a size"
    return "not listed" if size < 0 else f"listed with {gib(size)}"


async def link(bench: Bench) -> None:
    """Speed of the link, by memory, and of getting pinned memory."""
    for name, found in bench.link(quick=False).items():
        bench.report.figure(name, rate(found), bytes_per_second=found)


# --- coop --------------------------------------------------------------------------------------------------


async def coop(bench: Bench) -> None:
    """Sessions leave and come back: what stays, how long it takes and where the time goes."""
    scale, report = bench.scale, bench.report
    speed = bench.link()
    report.figure("link", f"{rate(speed['pinned_to_host'])} to the host, {rate(speed['pinned_to_gpu'])} back")
    bench.make_room(max(scale.state_mib) * MIB + HOST_SPARE_BYTES if scale.judge_speed else 0)
    runs = []
    async with bench.rig() as rig:
        for number, mib in enumerate(scale.state_mib, 1):
            words = ["--model", scale.model, "--state-mib", str(mib), "--seed", str(number)]
            job = await rig.start(number, *words)
            shares = []
            for cycle in range(scale.cycles + scale.cycles_keeping_context):
                release = cycle < scale.cycles
                share = await _cycle(bench, rig, job, f"{mib} MiB", cycle + 1, release, speed)
                if release and cycle > 0:
                    shares.append(share)
            if shares and scale.judge_speed:
                text = f"{min(shares):.2f} of the link at least, from cycle 2 on; wanted {LINK_SHARE}"
                report.check(f"{mib} MiB: copy to the host", min(shares) >= LINK_SHARE, text)
            runs.append((f"{mib} MiB", words, await job.end()))
        await same_as_undisturbed(bench, rig, runs)


async def _cycle(
    bench: Bench, rig: Rig, job: Job, label: str, number: int, release: bool, speed: Mapping[str, float]
) -> float:
    """One time off the GPU and back; the share of the link that the copy to the host reached."""
    sample = (await rig.nodes.observe(20.0))[rig.node]
    if not isinstance(sample, NodeSample):
        raise RigError(f"the agent does not see the node: {sample}")
    state_bytes = sum(rank.state_bytes for rank in sample.jobs[job.job_id].ranks)
    keep = 0 if release else bench.scale.keep_bytes
    left = await rig.leave(job, release_context=release, residual_bytes=keep)
    stays = held_bytes(bench).get(job.process.pid, 0)
    back = await rig.come_back(job)
    await job.more_steps(3)
    restore = job.last_switch("restore").get("seconds", 0.0)
    copy_seconds = max(1e-9, left.session_seconds - sum(left.parts.values()))
    share = state_bytes / copy_seconds / speed["pinned_to_host"]
    text = (
        f"{gib(state_bytes)}: pause {left.pause_seconds:.3f} s (count {left.count_seconds:.3f}),"
        f" offload {left.offload_seconds:.3f} s"
        f" ({_split(left)}), copy at {share:.2f} of the link; resume {back:.3f} s"
        f" (job {restore:.3f} s, {state_bytes / max(1e-9, restore) / speed['pinned_to_gpu']:.2f} of the link)"
    )
    what = f"{label}, cycle {number}, context {'released' if release else 'kept'}"
    figures = {
        "state_bytes": state_bytes,
        "pause_seconds": left.pause_seconds,
        "offload_seconds": left.offload_seconds,
        "session_seconds": left.session_seconds,
        "parts": dict(left.parts),
        "count_seconds": left.count_seconds,
        "copy_link_share": share,
        "resume_seconds": back,
        "restore_seconds": restore,
        "left_bytes": stays,
    }
    bench.report.figure(what, text, **figures)
    if release:
        bench.report.check(f"{what}: NVML", stays == 0, f"{_listed(stays) if stays else 'nothing'} stays")
    else:
        kept = stays is not None and 0 < stays <= bench.scale.keep_bytes
        bench.report.check(f"{what}: NVML", kept, f"{_listed(stays)}: the context")
    return share


def _split(left: Left) -> str:
    parts = {**left.parts, "copy": left.session_seconds - sum(left.parts.values())}
    parts["agent, driver, NVML"] = left.offload_seconds - left.session_seconds
    return ", ".join(f"{name} {seconds:.3f}" for name, seconds in parts.items())


# --- refuse ------------------------------------------------------------------------------------------------


async def refuse(bench: Bench) -> None:
    """What a session cannot move must be refused, or moved right: never a wrong result."""
    scale, runs = bench.scale, []
    async with bench.rig() as rig:
        for number, hazard in enumerate(scale.hazards, 1):
            words = ["--model", scale.hazard_model, "--state-mib", str(scale.hazard_mib), "--hazard", hazard]
            try:
                job = await rig.start(number, *words)
            except RigError as error:
                bench.report.not_run(hazard, str(error))
                continue
            try:
                left = await rig.leave(job)
                await rig.come_back(job)
                how = f"left and came back, {gib(left.answer.left_bytes)} stayed"
            except NodeError as error:
                job.signal(signal.SIGCONT)
                how = f"refused: {error}"
            bench.report.figure(hazard, how)
            try:
                await job.more_steps(3)
                runs.append((hazard, words, await job.end()))
            except RigError as error:
                bench.report.check(f"{hazard}: goes on", False, str(error))
        await same_as_undisturbed(bench, rig, runs)


# --- driver ------------------------------------------------------------------------------------------------


async def driver(bench: Bench) -> None:
    """The driver's checkpoint of jobs without a session, its deadline, and an agent that is killed."""
    scale = bench.scale
    speed = bench.link()
    bench.make_room(2 * max(scale.state_mib) * MIB + HOST_SPARE_BYTES if scale.judge_speed else 0)
    runs: list[Run] = []
    async with bench.rig() as rig:
        if not rig.hello.checkpoint_supported:
            raise CannotRun(f"driver {rig.hello.driver_version} has no checkpoint calls; need 570")
        for number, mib in enumerate(scale.state_mib, 1):
            words = ["--model", scale.model, "--state-mib", str(mib), "--seed", str(number)]
            job = await rig.start(number, *words, "--no-session")
            for cycle in range(2):
                await _driver_cycle(bench, rig, job, f"{mib} MiB, cycle {cycle + 1}", speed)
            runs.append((f"{mib} MiB", words, await job.end()))
        for number, hazard in enumerate(scale.driver_hazards, 21):
            words = ["--model", scale.hazard_model, "--state-mib", str(scale.hazard_mib), "--hazard", hazard]
            job = await rig.start(number, *words, "--no-session")
            await _driver_cycle(bench, rig, job, hazard, speed)
            runs.append((hazard, words, await job.end()))
        runs.append(await _long_kernel(bench, rig))
        # Last: what it does to the job and to the driver is not known.
        if (killed := await _killed_agent(bench, rig)) is not None:
            runs.append(killed)
        await same_as_undisturbed(bench, rig, runs)


async def _driver_cycle(bench: Bench, rig: Rig, job: Job, label: str, speed: Mapping[str, float]) -> None:
    held = held_bytes(bench).get(job.process.pid) or 0
    left = await rig.checkpoint(job)
    stays = held_bytes(bench).get(job.process.pid, 0)
    back = await rig.come_back(job)
    await job.more_steps(3)
    share = held / left.offload_seconds / speed["pinned_to_host"]
    back_share = held / back / speed["pinned_to_gpu"]
    bench.report.figure(
        label,
        f"{gib(held)}: checkpoint {left.offload_seconds:.3f} s ({rate(held / left.offload_seconds)},"
        f" {share:.2f} of the link), restore {back:.3f} s"
        f" ({rate(held / back)}, {back_share:.2f} of the link)",
        held_bytes=held,
        checkpoint_seconds=left.offload_seconds,
        restore_seconds=back,
        checkpoint_link_share=share,
        restore_link_share=back_share,
    )
    bench.report.check(f"{label}: NVML", stays == 0, f"{_listed(stays) if stays else 'nothing'} stays")


async def _killed_agent(bench: Bench, rig: Rig) -> Run | None:
    """SIGKILL to the agent while the driver works: the next agent must find the job and bring it back."""
    scale, what = bench.scale, "agent killed in the middle of a checkpoint"
    mib = scale.state_mib[len(scale.state_mib) // 2]
    words = ["--model", scale.model, "--state-mib", str(mib), "--seed", "41"]
    job = await rig.start(41, *words, "--no-session")
    delay_seconds = scale.kill_after_seconds
    while True:
        call = asyncio.create_task(rig.checkpoint(job))
        await asyncio.sleep(delay_seconds)
        if not call.done():
            break
        await call  # too late: once more, and sooner
        await rig.come_back(job)
        delay_seconds /= 4
    await rig.kill_agent()
    (outcome,) = await asyncio.gather(call, return_exceptions=True)
    refusals: list[str] = []
    try:
        await _brought_back(rig, job, refusals)
        await job.more_steps(3)
        result = await job.end()
    except (NodeError, RigError) as error:
        bench.report.check(what, False, f"the job did not come back: {error}; before: {refusals[-3:]}")
        return None
    told = f"after {delay_seconds:g} s; the call said: {outcome}"
    back = f"the job came back after {len(refusals)} refusals {refusals[-1:]}"
    bench.report.check(what, True, f"{told}; {back}")
    return what, words, result


async def _brought_back(rig: Rig, job: Job, refusals: list[str]) -> None:
    """As the controller does: tried again at each turn. Raises the last NodeError after half a minute."""
    until = time.monotonic() + 30.0
    while True:
        try:
            await rig.come_back(job)
            return
        except NodeError as error:
            if time.monotonic() > until:
                raise
            refusals.append(str(error))
            await asyncio.sleep(1.0)


async def _long_kernel(bench: Bench, rig: Rig) -> Run:
    """A kernel that outlasts the lock's deadline: the job must be left running."""
    scale, label = bench.scale, "kernel longer than the lock's deadline"
    words = ["--model", scale.hazard_model, "--state-mib", str(scale.hazard_mib)]
    at = 12
    kernel = ("--kernel-at", str(at), "--kernel-seconds", str(scale.kernel_seconds), "--pace-ms", "20")
    job = await rig.start(31, *words, "--no-session", *kernel)
    await job.wait_for("the step before the long kernel", lambda: job.log_lines() >= at - 1, 30.0)
    await asyncio.sleep(0.5)  # the pace, and a trial of how long a kernel takes
    begin = time.perf_counter()
    try:
        await rig.checkpoint(job, 2 * scale.lock_seconds)
        await rig.come_back(job)
        bench.report.check(label, False, f"checkpointed after {time.perf_counter() - begin:.1f} s")
    except NodeError as error:
        seconds = time.perf_counter() - begin
        bench.report.check(label, error.kind == "deadline", f"after {seconds:.1f} s: {error}")
    await job.more_steps(3)
    return label, words, await job.end()


# --- slice -------------------------------------------------------------------------------------------------


async def time_slice(bench: Bench) -> None:
    """Two jobs that together do not fit take turns; a watcher must never see both."""
    scale, report = bench.scale, bench.report
    speed = bench.link()
    async with bench.rig() as rig:
        total = next(g.memory_bytes for g in rig.hello.gpus if g.index == rig.index)
        mib = int(total * scale.slice_share) // MIB
        bench.make_room(2 * mib * MIB + HOST_SPARE_BYTES if scale.judge_speed else 0)
        report.figure("sizes", f"two jobs of {gib(mib * MIB)} on a GPU of {gib(total)}")
        seeds = ("1", "2")
        words = [["--model", scale.model, "--state-mib", str(mib), "--seed", seed] for seed in seeds]
        with watcher(bench.place) as seen:
            jobs = await _take_turns(bench, rig, words, mib * MIB, speed)
            results = [await jobs[0].end()]
            await rig.come_back(jobs[1])
            results.append(await jobs[1].end())
        verdict = watch.judge(watch.read_lines(seen), {str(job.job_id): [job.process.pid] for job in jobs})
        _exclusive(bench, verdict, mib * MIB)
        labels = [f"job {job.job_id}" for job in jobs]
        await same_as_undisturbed(bench, rig, list(zip(labels, words, results, strict=True)), together=False)


async def _take_turns(
    bench: Bench, rig: Rig, words: Sequence[Sequence[str]], nbytes: int, speed: Mapping[str, float]
) -> list[Job]:
    """An even number of switches; afterwards the first job is on the GPU, and the second is off it."""
    scale, report = bench.scale, bench.report
    pace = ("--pace-ms", str(scale.pace_ms))
    jobs = [await rig.start(1, *words[0], *pace)]
    gaps = []
    for switch in range(1, scale.switches + 1):
        await asyncio.sleep(scale.slice_seconds)
        leaving = jobs[(switch - 1) % 2]
        left = await rig.leave(leaving)
        last = leaving.steps()[-1]["end"]
        if len(jobs) < 2:
            jobs.append(await rig.start(2, *words[1], *pace))
            report.figure(f"switch {switch}", f"offload {left.offload_seconds:.3f} s; the other job starts")
            continue
        coming = jobs[switch % 2]
        done = len(coming.steps())
        back = await rig.come_back(coming)
        await coming.more_steps(1)
        gap = coming.steps()[done]["begin"] - last
        text = f"gap {gap:.3f} s: pause {left.pause_seconds:.3f}, offload {left.offload_seconds:.3f}"
        report.figure(f"switch {switch}", f"{text} ({_split(left)}), resume {back:.3f}", gap_seconds=gap)
        if switch > 3:
            gaps.append(gap)  # by then both have their host memory
    copies = nbytes / speed["pinned_to_host"] + nbytes / speed["pinned_to_gpu"]
    report.figure(
        "gap between the jobs' steps, median from switch 4 on",
        f"{statistics.median(gaps):.3f} s; the copies alone take {copies:.3f} s at the speed of the link",
        gap_seconds=statistics.median(gaps),
        copies_seconds=copies,
    )
    return jobs


def _exclusive(bench: Bench, verdict: watch.Verdict, state_bytes: int) -> None:
    report = bench.report
    samples = f"{verdict.samples} samples, {verdict.longest_gap_seconds * 1000:.0f} ms apart at most"
    first = f"; the first: {verdict.overlaps[0]}" if verdict.overlaps else ""
    report.check(
        "never both jobs on the GPU",
        not verdict.overlaps,
        f"{len(verdict.overlaps)} overlaps in {samples}{first}",
    )
    saw = len(verdict.seen) == 2 and all(nbytes >= state_bytes for nbytes in verdict.seen.values())
    shown = {job: gib(nbytes) for job, nbytes in verdict.seen.items()}
    report.check("the watcher saw each job's memory", saw, f"most held by each: {shown}")
    awake = verdict.samples > 0 and verdict.longest_gap_seconds <= bench.scale.watch_gap_seconds
    report.check("the watcher was awake", awake, f"{samples}; {verdict.unread} times NVML failed")
    report.figure("memory of processes of no job", str({p: gib(n) for p, n in verdict.strangers.items()}))


# --- pack --------------------------------------------------------------------------------------------------


async def pack(bench: Bench) -> None:
    """Jobs alone and side by side on one GPU: the rates that a decision to pack would go by."""
    scale, report = bench.scale, bench.report
    names = sorted({(name, group[:n].count(name)) for group in scale.packs for n, name in enumerate(group)})
    alone: dict[str, float] = {}
    async with bench.rig() as rig:
        jobs = {
            name: rig.spawn(0, "--model", name[0], "--no-session", "--seed", str(n), managed=False)
            for n, name in enumerate(names)
        }
        for job in jobs.values():
            await job.more_steps(5, START_SECONDS)
        for job in jobs.values():
            job.signal(signal.SIGSTOP)
        for group in scale.packs:
            members = [jobs[name, group[:n].count(name)] for n, name in enumerate(group)]
            rates = await _rates(members, scale.pack_seconds)
            if len(group) == 1:
                alone[group[0]] = rates[0]
            shares = [found / alone[name] for name, found in zip(group, rates, strict=True)]
            text = ", ".join(
                f"{name} {found:.1f} steps/s ({share:.2f} of alone)"
                for name, found, share in zip(group, rates, shares, strict=True)
            )
            report.figure(
                " + ".join(group), f"{text}; together {sum(shares):.2f}", rates=rates, shares=shares
            )


async def _rates(jobs: Sequence[Job], seconds: float) -> list[float]:
    """Steps per second while exactly these jobs run."""
    for job in jobs:
        job.signal(signal.SIGCONT)
    await asyncio.sleep(min(0.5, seconds / 4))
    before, begin = [job.log_lines() for job in jobs], time.monotonic()
    await asyncio.sleep(seconds)
    after, took = [job.log_lines() for job in jobs], time.monotonic() - begin
    for job in jobs:
        job.signal(signal.SIGSTOP)
        if job.process.poll() is not None:
            raise RigError(f"a job ended: {job.last_words()}")
    return [(late - early) / took for early, late in zip(before, after, strict=True)]


STAGES: Mapping[str, tuple[Callable[[Bench], Awaitable[None]], float]] = {
    "facts": (facts, 70.0),
    "link": (link, 60.0),
    "coop": (coop, 200.0),
    "refuse": (refuse, 150.0),
    "driver": (driver, 170.0),
    "slice": (time_slice, 330.0),
    "pack": (pack, 120.0),
}
"""In the order in which they run, each with its deadline in seconds."""


async def _carry_out(stage: str, bench: Bench) -> None:
    report = bench.report
    try:
        nvml()
        await STAGES[stage][0](bench)
    except CannotRun as error:
        report.not_run("the rest" if report.rows else "the stage", str(error))
    except (RigError, NodeError) as error:
        report.check("the rest" if report.rows else "the stage", False, str(error))
    except Exception as error:
        traceback.print_exc()
        report.check("the rest" if report.rows else "the stage", False, f"{type(error).__name__}: {error}")
    report.save()


def main() -> int:
    """Run one stage; the rest of the arguments are __main__'s to know."""
    parser = argparse.ArgumentParser()
    parser.add_argument("stage", choices=list(STAGES))
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--gpu", type=int, required=True)
    parser.add_argument("--uid", type=int, required=True)
    parser.add_argument("--job-python", required=True)
    parser.add_argument("--mock", action="store_true")
    options = parser.parse_args()
    place = Place(options.scratch, options.gpu, options.uid, options.job_python, os.environ[MARK])
    report = Report(options.stage, options.scratch / f"{options.stage}.json")
    asyncio.run(_carry_out(options.stage, Bench(place, MOCK if options.mock else Scale(), report)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
