# SPDX-License-Identifier: GPL-2.0-or-later
"""The way to slurmctld through pyslurm, the default: 3,000 jobs in about 50 ms, a suspend in 2 ms.

pyslurm runs in worker processes (see `pyslurm_worker` for why). What pyslurm 25.11 cannot say (change a job's
number of nodes, clear a field, split an array, requeue only what still runs, which GPU an ordinary job
holds) goes through Slurm's commands; all of that is rare. So does a hold: pyslurm's hold(mode="user") follows
a null pointer, its plain hold looks like an administrator's.
"""

import asyncio
import collections
import importlib.util
import logging
import marshal
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controller.cluster.command import CommandTransport, Load
from controller.cluster.commands import TOO_MUCH, error_of_number
from controller.cluster.pyslurm_worker import HEADER_BYTES, framed
from controller.cluster.raw import JobRecord, NodeRecord
from controller.errors import ClusterUnavailable, SettingsError, UnknownJob
from controller.model import GpuId, JobId
from gandiva._processes import slurm_environment

log = logging.getLogger(__name__)

WORKERS = 2
"""One can load all jobs while the other suspends one."""

READ_ALL_SECONDS = 300.0
"""So often all jobs are read, whatever slurmctld says of changes."""

_REAP_SECONDS = 1.0
_ROOT = Path(__file__).resolve().parents[2]


def require_pyslurm() -> None:
    """Raises SettingsError, naming the alternative, where pyslurm is not installed."""
    if importlib.util.find_spec("pyslurm") is None:
        raise SettingsError(
            "cluster.adapter is 'pyslurm', but Python finds no module pyslurm: install the pyslurm that "
            "matches this host's Slurm, or set cluster.adapter = 'command', which needs only Slurm's commands"
        )


class PyslurmTransport(CommandTransport):
    """The same with pyslurm; what that cannot do is left to the commands."""

    def __init__(self) -> None:
        super().__init__()
        self._idle = [_Worker() for _ in range(WORKERS)]
        self._all = tuple(self._idle)
        self._turn = asyncio.Semaphore(WORKERS)
        self._whole_gpus: dict[tuple[int, int], frozenset[GpuId]] = {}
        self._loading = asyncio.Lock()
        """Answers build on each other."""
        self._answer: tuple[int, int] | None = None
        """The last answer of a worker about all jobs, by its name."""
        self._read_all_at = 0.0
        self._records: dict[int, JobRecord] = {}
        self._jobs: tuple[JobRecord, ...] = ()
        """The same object until a job changes."""

    async def load(self) -> Load:
        async with self._loading:
            now = time.monotonic()
            known = self._answer if now < self._read_all_at + READ_ALL_SECONDS else None
            self._answer, base, changed, gone, whole, nodes = await self._call(
                "load", known, what="reading jobs and nodes"
            )
            if base is None:
                self._records, self._read_all_at = {}, now
            if base is None or changed or gone:
                self._records.update((job[0], JobRecord._make(job)) for job in changed)
                for job_id in gone:
                    del self._records[job_id]
                self._jobs = tuple(self._records.values())
                self.remember(self._jobs, all_jobs=True)
        return Load(
            jobs=self._jobs,
            nodes=tuple(NodeRecord._make(node) for node in nodes),
            whole_gpu_jobs=await self._which_whole_gpus(whole),
        )

    async def _which_whole_gpus(self, jobs: Sequence[tuple[int, int]]) -> dict[GpuId, JobId]:
        """The GPUs that jobs, given as (id, start time), hold whole. Asked once per job: it never changes."""
        if new := [key for key in jobs if key not in self._whole_gpus]:
            found: dict[int, set[GpuId]] = {}
            for gpu, job_id in (await self.whole_gpus([JobId(id_) for id_, _ in new])).items():
                found.setdefault(job_id, set()).add(gpu)
            self._whole_gpus.update({key: frozenset(found[key[0]]) for key in new if key[0] in found})
        self._whole_gpus = {key: self._whole_gpus[key] for key in jobs if key in self._whole_gpus}
        return {gpu: JobId(key[0]) for key, gpus in self._whole_gpus.items() for gpu in gpus}

    async def job(self, job_id: JobId) -> JobRecord:
        found = await self._call("job", job_id, what=f"reading job {job_id}", job_id=job_id)
        if found is None:
            raise UnknownJob(f"job {job_id}: Slurm does not know it (any more)")
        record = JobRecord._make(found)
        self.remember([record])
        return record

    async def bind(self, job_id: JobId, gres: Sequence[str], nodes: Sequence[str], resize: bool) -> None:
        if resize:
            await super().bind(job_id, gres, nodes, resize)
            return
        wanted = dict.fromkeys(gres, 1)
        await self._call("bind", job_id, wanted, list(nodes), what=f"binding job {job_id}", job_id=job_id)

    async def release(self, job_id: JobId) -> None:
        await self._call("release", job_id, what=f"releasing job {job_id}", job_id=job_id)

    async def suspend(self, job_id: JobId) -> None:
        await self._call("suspend", job_id, what=f"suspending job {job_id}", job_id=job_id)

    async def resume(self, job_id: JobId) -> None:
        await self._call("resume", job_id, what=f"resuming job {job_id}", job_id=job_id)

    async def close(self) -> None:
        await asyncio.gather(*(worker.close() for worker in self._all))

    async def _call(self, verb: str, *arguments: Any, what: str, job_id: JobId | None = None) -> Any:
        async with self._turn:
            # The first one knows what it said of the jobs before.
            worker = self._idle.pop(0 if verb == "load" else -1)
            try:
                kind, *rest = await worker.ask((verb, *arguments), what)
            finally:
                self._idle.insert(0 if worker is self._all[0] else len(self._idle), worker)
        if kind == "ok":
            return rest[0]
        if kind == "error":
            number, message = rest
            raise error_of_number(number, message, what, job_id)
        raise ClusterUnavailable(f"{what}: {rest[0]}")


class _Worker:
    """One worker process: started when first needed, and again after it died or was killed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._said: collections.deque[str] = collections.deque(maxlen=5)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def ask(self, request: tuple[Any, ...], what: str) -> tuple[Any, ...]:
        """Send a request and wait for its answer. Cancelling this kills the process, whose call cannot be
        stopped otherwise. Raises ClusterUnavailable when the process dies."""
        try:
            process = self._process
            if process is None or process.returncode is not None:
                process = await self._start(what)
            assert process.stdin is not None
            process.stdin.write(framed(request))
            await process.stdin.drain()
            return await self._answer()
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            await self.close()  # What it said last is on its way through another pipe.
            said = " / ".join(self._said) or "it said nothing"
            raise ClusterUnavailable(f"{what}: the pyslurm worker died: {said}") from error
        except BaseException:
            self._kill()
            raise

    async def close(self) -> None:
        """End the process and wait until it is gone: a moment, unless it hangs in the kernel."""
        self._kill()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_REAP_SECONDS)

    async def _start(self, what: str) -> asyncio.subprocess.Process:
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        self._said.clear()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "controller.cluster.pyslurm_worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd="/",  # -m looks for modules in the working directory first.
                env={**slurm_environment(), "PYTHONPATH": path},
            )
        except OSError as error:
            said = f"{what}: cannot start a pyslurm worker: {error.strerror}; {TOO_MUCH}"
            raise ClusterUnavailable(said) from error
        self._process = process
        self._follow(self._listen(process))
        self._follow(process.wait())
        kind, text = await self._answer()
        if kind != "ok":
            self._kill()
            raise ClusterUnavailable(f"{what}: {text}; cluster.adapter = 'command' does without pyslurm")
        log.debug("pyslurm %s runs as process %d", text, process.pid)
        return process

    def _follow(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self) -> tuple[Any, ...]:
        assert self._process is not None and self._process.stdout is not None
        header = await self._process.stdout.readexactly(HEADER_BYTES)
        body = await self._process.stdout.readexactly(int.from_bytes(header, "little"))
        answer: tuple[Any, ...] = marshal.loads(body)
        return answer

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Keep what it says: libslurm's last words before it ends the process."""
        assert process.stderr is not None
        while line := await process.stderr.readline():
            text = line.decode(errors="replace").strip()
            self._said.append(text)
            log.debug("pyslurm worker: %s", text)

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        self._process = None
