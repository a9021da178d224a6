# SPDX-License-Identifier: GPL-2.0-or-later
"""Collects the facts from Slurm's commands, agents, files and the API: in parallel, each with a deadline.

A source that does not answer becomes a finding, and does not delay the others.
"""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from controller.api.access import client_token
from controller.checks import agents, controller, files, gpus, slurm_files, slurm_options
from controller.checks.finding import Finding, Subject
from controller.checks.gpu_types import SACCTMGR, judge_types
from controller.checks.partitions import judge_partitions
from controller.checks.products import judge_products
from controller.checks.slurm_options import SlurmOptions
from controller.cluster.commands import run
from controller.cluster.partitions import SCONTROL, parse_partitions
from controller.errors import ClusterError, GandivaError, NodeError, SettingsError
from controller.settings.loading import load_settings
from controller.settings.schema import NodesSettings, Settings

T = TypeVar("T")
PARALLEL_AGENTS = 64
"""Nodes that are asked at the same time."""


@dataclass(frozen=True)
class Request:
    settings_path: Path
    user: str = "gandiva"
    """The user that the daemon runs as."""
    deadline_seconds: float = 20.0
    """For each part; the parts run at the same time, the agents after Slurm has named the nodes."""
    nodes: tuple[str, ...] = ()
    """Only these; empty: all with GPUs."""
    description: Path | None = None
    """The cluster description that Slurm's files were made from."""


async def examine(request: Request) -> list[Finding]:
    """All findings: of this host, of Slurm, of the nodes. Expected errors become findings."""
    host = socket.gethostname().split(".")[0]
    path = request.settings_path
    findings: list[Finding] = []
    settings: Settings | None = None
    leads = False
    try:
        settings = await _in_thread(lambda: load_settings(path), request.deadline_seconds)
        findings.append(Subject(host, "settings").ok(f"{path} is valid"))
        for each in settings.policy.deprecated:
            findings.append(Subject(host, "settings").warning(each, f"edit {path}"))
    except (GandivaError, TimeoutError) as failure:
        findings.append(_no_settings(host, path, str(failure) or "cannot be read in time"))
        # Invalid settings are most often the controller's, just edited. A host without any is none of its
        # hosts.
        settings = Settings() if path.exists() else None
    parts = []
    if settings is not None:
        leads = await _is_controllers(request, settings, host)
        parts = _this_host(request, settings, host, leads)
    change = "scontrol ping; this host needs Slurm's commands, slurm.conf and munge, and slurmctld must run"
    parts.append(_answered(_slurm(request, settings, host, leads), Subject("slurm", "slurmctld"), change))
    return [*findings, *(finding for part in await asyncio.gather(*parts) for finding in part)]


def _no_settings(host: str, path: Path, why: str) -> Finding:
    """They are invalid, or missing, as on a login node to which they were not copied."""
    subject = Subject(host, "settings")
    if path.exists():
        return subject.error(why, f"edit {path}")
    # The key to the nodes is on the controller's host, and a daemon without settings does not start.
    say = subject.error if Settings().nodes.ssh_key.exists() else subject.warning
    return say(
        f"there is no {path}: gandiva top, report, explain and status do not find the controller, and this "
        "check examines Slurm only",
        f"on the controller's host: gandiva config sample > {path}; on login nodes: copy that file (there is "
        "no secret in it; other nodes need none), or name another one with --config or GANDIVA_CONFIG",
    )


async def _is_controllers(request: Request, settings: Settings, host: str) -> bool:
    try:
        return await _in_thread(lambda: files.is_controllers(settings, host), request.deadline_seconds)
    except (TimeoutError, OSError):
        return True  # The findings then say what hangs, or may not be read.


def _this_host(
    request: Request, settings: Settings, host: str, leads: bool
) -> list[Coroutine[None, None, list[Finding]]]:
    """Files, journal and API; the controller's own files on its host only."""

    def api() -> Iterable[Finding]:
        try:
            token = client_token(settings.api.token_file)
        except SettingsError as failure:
            return [Subject(settings.api_url, "API").error(str(failure), "see the message")]
        return controller.judge_api(settings.api_url, request.deadline_seconds * 0.8, token)

    def own_files() -> Iterable[Finding]:
        if leads:
            return files.judge_permissions(settings, request.settings_path, request.user, host)
        return files.judge_client(settings, request.settings_path, host)

    parts = [_part(Subject(host, "files"), request, own_files), _part(Subject(host, "API"), request, api)]
    if leads:
        journal = Subject(host, "journal")
        parts.insert(1, _part(journal, request, lambda: controller.judge_journal(settings.journal.path)))
    return parts


async def _slurm(request: Request, settings: Settings | None, host: str, leads: bool) -> list[Finding]:
    """Options and files of Slurm, then the nodes it names. Raises ClusterError: it has no options."""
    text = await _command(request, "scontrol", "show", "config", what="reading Slurm's configuration")
    options = SlurmOptions.parse(text)
    accounting, nodes = Subject("slurm", "AdminLevel"), _nodes(request, settings if leads else None, options)
    on_disk, level, known = await asyncio.gather(
        _part(Subject(host, "Slurm's files"), request, lambda: _files(options, host, request)),
        _answered(_admin_level(request), accounting, "is slurmdbd up? sacctmgr show cluster"),
        _answered(nodes, Subject("slurm", "nodes"), "scontrol show nodes"),
    )
    judged = [*slurm_options.judge_options(options), *level]
    if settings is not None:
        judged.append(slurm_options.judge_private_data(options, settings.api))
    return [*judged, *on_disk, *known]


def _files(options: SlurmOptions, host: str, request: Request) -> Iterable[Finding]:
    yield from slurm_files.judge_files(options, host, request.user)
    if request.description is not None:
        yield from slurm_files.judge_description(request.description, options, host)


async def _admin_level(request: Request) -> list[Finding]:
    asked = ("sacctmgr", "-nP", "show", "user", f"name={request.user}", "format=user,adminlevel")
    reply = await _command(request, *asked, what="reading the AdminLevel")
    return [slurm_options.judge_admin_level(reply, request.user)]


async def _nodes(request: Request, settings: Settings | None, options: SlurmOptions) -> list[Finding]:
    """The nodes as Slurm has them and, with settings, their agents. Raises ClusterError."""
    reply = await _command(request, "scontrol", "show", "nodes", "--json", what="reading the nodes")
    known = gpus.gpu_nodes(reply)
    findings: list[Finding] = []
    types = [item.type for node in known for item in node.gres or () if item.name == "gpu"]
    models = {model: model for node in known for model in node.models}
    with contextlib.suppress(TimeoutError, OSError):  # another finding
        models |= await _in_thread(lambda: slurm_files.aliases(options), request.deadline_seconds)
    if request.nodes:
        unknown = [name for name in request.nodes if name not in {node.name for node in known}]
        say = ("Slurm has no such node with GPUs", "sinfo -N -o '%N %G'")
        findings += [Subject(name, "node").error(*say) for name in unknown]
        known = tuple(node for node in known if node.name in request.nodes)
    elif not known:
        line = f"in {options.file}: include gandiva/slurm.conf (see gandiva config slurm)"
        return [Subject("slurm", "nodes").error("Slurm has no node with GPUs", line)]
    elif shared := tuple(node for node in known if not gpus.left_out(node, models)):
        findings += [gpus.not_shared(node, models, options.file) for node in known if node not in shared]
        known = shared
    answers: dict[str, agents.AgentAnswer] = {}
    if settings is not None:
        answers, refusal = await _agents(request, settings.nodes, known)
        findings += refusal
        findings += judge_products(known, answers, settings.nodes)
    partitions = _partitions(request, [node.name for node in known], types, models.values(), options)
    findings += await _answered(partitions, Subject("slurm", "partitions"), "scontrol show partition")
    for node in known:
        findings += gpus.judge_node(node, options.file, options.release)
        if settings is not None and node.name in answers:
            findings += agents.judge_agent(node, answers[node.name], settings.nodes, options.file)
    return findings


async def _partitions(
    request: Request, nodes: Sequence[str], types: Sequence[str], models: Iterable[str], options: SlurmOptions
) -> list[Finding]:
    """Those of these nodes; and limits and weights of GPUs by their types. Raises ClusterError."""
    what = "reading the partitions"
    text = await _command(request, *SCONTROL, what=what)
    known = parse_partitions(text, what)
    tables = []
    with contextlib.suppress(ClusterError):  # what is wrong with slurmdbd is another finding
        tables = [await _command(request, *argv, what="reading the limits") for argv in SACCTMGR]
    return [*judge_partitions(known, nodes, options), *judge_types(options, text, tables, types, models)]


async def _agents(
    request: Request, settings: NodesSettings, known: Sequence[gpus.KnownNode]
) -> tuple[dict[str, agents.AgentAnswer], list[Finding]]:
    """Their answers, or why they were not asked."""
    try:
        unreadable = await _in_thread(lambda: _unreadable(settings), request.deadline_seconds)
    except TimeoutError:
        unreadable = f"{settings.ssh_key} or {settings.known_hosts} cannot be opened: no answer"
    change = f"run this check as root or as {request.user} on the controller's host"
    if not unreadable:
        try:
            return await ask_agents(known, settings, request.deadline_seconds), []
        except ModuleNotFoundError as failure:
            unreadable = f"this Python has no module {failure.name}"
            change = "pip install 'gandiva-slurm[controller]'"
    return {}, [Subject("nodes", "agents").warning(f"not asked: {unreadable}", change)]


def _unreadable(settings: NodesSettings) -> str:
    """Why this user cannot use the key; empty where it can. A missing key is a finding of `files`."""
    for path in (settings.ssh_key, settings.known_hosts):
        try:
            with path.open("rb"):
                pass
        except PermissionError:
            return f"you may not read {path}"
        except OSError:
            continue
    return ""


async def ask_agents(
    known: Sequence[gpus.KnownNode], settings: NodesSettings, deadline_seconds: float
) -> dict[str, agents.AgentAnswer]:
    """Asks all agents in parallel, by connections of its own."""
    from controller.nodes.ssh import ssh_nodes  # needs a library that login nodes lack

    connect_seconds = min(settings.connect_deadline_seconds, deadline_seconds * 0.6)
    remote = ssh_nodes(settings.model_copy(update={"connect_deadline_seconds": connect_seconds}))
    addresses = {n.name: settings.addresses.get(n.name, n.record.address or n.name) for n in known}
    await remote.set_nodes(addresses)
    turn = asyncio.Semaphore(PARALLEL_AGENTS)

    async def ask(name: str) -> agents.AgentAnswer:
        try:
            async with turn:
                # The first request connects; the round-trip time of the second one bounds the error of the
                # clocks.
                await remote.hello(name, deadline_seconds)
                began_wall, began = time.time(), time.monotonic()
                hello = await remote.hello(name, min(deadline_seconds, 5.0))
                took = time.monotonic() - began
        except NodeError as failure:
            return agents.AgentAnswer(addresses[name], error=failure.message)
        ahead = 0.0 if hello.time is None else hello.time - (began_wall + took / 2)
        return agents.AgentAnswer(addresses[name], hello, "", ahead, took / 2)

    try:
        return dict(zip(addresses, await asyncio.gather(*map(ask, addresses)), strict=True))
    finally:
        await remote.close()


async def _answered(
    part: Coroutine[None, None, list[Finding]], subject: Subject, change: str
) -> list[Finding]:
    """A part; where Slurm does not answer, that as a finding."""
    try:
        return await part
    except ClusterError as failure:
        return [subject.error(str(failure), change)]


async def _command(request: Request, *argv: str, what: str) -> str:
    """A command of Slurm's. Raises ClusterError, at the deadline too."""
    seconds = request.deadline_seconds
    try:
        return await asyncio.wait_for(run(*argv, what=what), seconds)
    except asyncio.TimeoutError:
        raise ClusterError(f"{what}: {argv[0]} did not answer within {seconds:g} s") from None


async def _part(subject: Subject, request: Request, judge: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Run what may block, such as on a file system that hangs, beside the others, up to the deadline."""
    try:
        return await _in_thread(lambda: list(judge()), request.deadline_seconds)
    except TimeoutError:
        found = f"nothing known after {request.deadline_seconds:g} s"
        return [subject.error(found, "does a file system hang?")]
    except OSError as failure:
        return [subject.error(str(failure), "see the message")]


async def _in_thread(work: Callable[[], T], deadline_seconds: float) -> T:
    """In a thread that does not delay the end of the program. Raises TimeoutError."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # nothing can stop it: at the deadline it is only not waited for

    def body() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=body, name="check", daemon=True).start()
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), deadline_seconds)
    except asyncio.TimeoutError:
        raise TimeoutError from None
