# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva-agent`: the end of the node protocol on a GPU node, run as root; with --trials as a user.

Started by sshd as a forced command, so that the key that opens this door opens nothing else:

    from="10.0.0.2",restrict,command="/usr/bin/gandiva-agent" ssh-ed25519 AAAA… gandiva

It then takes only `gandiva-agent NODENAME` from SSH_ORIGINAL_COMMAND. Requests come on standard input,
answers go to standard output, messages to syslog (with --trials to standard error). When its input ends the
agent finishes what it has begun and exits; jobs go on, and the next agent finds everything in their control
blocks.
"""

import argparse
import logging
import logging.handlers
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from checkpointing.driver_process import DriverProcesses
from controller.agent.deadline import Deadline
from controller.agent.files import keep_whole, make_own
from controller.agent.gpus import GpuReader, NvmlSource
from controller.agent.node import AgentSettings
from controller.agent.verbs import NodeAgent
from controller.nodes import protocol
from controller.nodes.protocol import AgentError, Answer, ErrorBody, ErrorKind

SYSLOG = Path("/dev/log")
FINISH_SECONDS = 300.0
"""How long work in flight may go on after the channel has gone."""
MAX_THREADS = 64
MAX_WAITING = 1024
BESIDE = frozenset({"mapped"})
"""Verbs about a job that change nothing: they do not wait for its other verbs."""

log = logging.getLogger("gandiva-agent")


def bad_request(message: str) -> AgentError:
    return AgentError(ErrorKind.BAD_REQUEST, message)


class Stop(Exception):
    """SIGTERM: as if the channel had gone, finish what is begun and take no more."""


def _stop(number: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stop(f"signal {number}")


def parse_command(arguments: Sequence[str], environ: Mapping[str, str]) -> AgentSettings:
    """Where the agent is and what it may touch.

    Behind sshd the node name is taken from SSH_ORIGINAL_COMMAND, which the other side chooses, and nothing
    but a node name is. Raises AgentError bad_request.
    """
    parser = argparse.ArgumentParser(
        prog="gandiva-agent",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        exit_on_error=False,
    )
    parser.add_argument(
        "--run-dir",
        default="/run/gandiva",
        help="root of the control blocks; %%n is the node name (default: %(default)s)",
    )
    parser.add_argument(
        "--gpustat-dir",
        default="/run/gpustat",
        help="files for gpustat; %%n is the node name; empty: none (default: %(default)s)",
    )
    parser.add_argument(
        "--trials",
        action="store_true",
        help="the jobs are the trials of a study of this user (gandiva run), not Slurm's",
    )
    parser.add_argument(
        "--host-memory",
        metavar="BYTES",
        type=int,
        help="most host memory for the GPU memory of jobs that are off their GPUs (default: what there is)",
    )
    parser.add_argument("node", nargs="?", metavar="NODENAME", help="the node's name in Slurm")
    try:
        options = parser.parse_args(list(arguments))
    except argparse.ArgumentError as error:
        raise bad_request(str(error)) from None
    node = options.node
    if "SSH_ORIGINAL_COMMAND" in environ:
        match = protocol.COMMAND.fullmatch(environ["SSH_ORIGINAL_COMMAND"])
        if match is None:
            raise bad_request("this key allows only the command: gandiva-agent NODENAME")
        node = match.group(1)
    if node is None or not protocol.NODE_NAME.fullmatch(node):
        raise bad_request("name the Slurm node this agent is for: gandiva-agent NODENAME")
    run_dir, gpustat = (text.replace("%n", node) for text in (options.run_dir, options.gpustat_dir))
    return AgentSettings(
        node, Path(run_dir), Path(gpustat) if gpustat else None, options.trials, options.host_memory
    )


def make_room(run_dir: Path) -> None:
    """The folder of a study's control blocks, where there is none yet. Raises AgentError internal."""
    try:
        for folder in (run_dir.parent, run_dir):
            make_own(folder)
        keep_whole(run_dir.parent)
    except OSError as error:
        raise AgentError(ErrorKind.INTERNAL, f"folder {error.filename}: {error.strerror}") from error


def read_lines(descriptor: int) -> Iterator[bytes | None]:
    """Lines of at most MAX_LINE_BYTES; None stands for one that was longer and has been thrown away."""
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        while line := file.readline(protocol.MAX_LINE_BYTES + 1):
            end = line
            while end and not end.endswith(b"\n"):
                end = file.readline(protocol.MAX_LINE_BYTES)
            # An unfinished last line is no request: the channel broke in the middle of it.
            if end:
                yield line[:-1] if end is line else None


class Lanes:
    """What concerns one job is done in order, different jobs at the same time: in each lane one piece of work
    at a time, at most MAX_THREADS in all.

    A lane has a thread only while it has work. Work that is not begun when `close` is called is dropped.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._at_work = threading.Semaphore(MAX_THREADS)
        self._lanes: dict[Hashable, deque[Callable[[], None]]] = {}
        self._waiting = 0
        self._closed = False

    def submit(self, lane: Hashable, work: Callable[[], None]) -> None:
        """Queue work. Raises AgentError, without queueing it, when MAX_WAITING pieces wait already."""
        with self._condition:
            if self._closed or self._waiting >= MAX_WAITING:
                raise bad_request(f"{self._waiting} requests are waiting already")
            self._waiting += 1
            if lane in self._lanes:
                self._lanes[lane].append(work)
                return
            self._lanes[lane] = deque([work])
        threading.Thread(target=self._run, args=(lane,), name=f"lane-{lane}", daemon=True).start()

    def close(self, seconds: float) -> bool:
        """Finish what is begun, drop the rest; False when something is still at it after `seconds`."""
        with self._condition:
            self._closed = True
            return self._condition.wait_for(lambda: not self._lanes, seconds)

    def _run(self, lane: Hashable) -> None:
        while True:
            # Let go after each piece of work, so that no lane starves.
            with self._at_work:
                with self._condition:
                    if self._closed or not self._lanes[lane]:
                        del self._lanes[lane]
                        self._condition.notify_all()
                        return
                    work = self._lanes[lane].popleft()
                    self._waiting -= 1
                try:
                    work()
                except Exception:
                    log.exception(
                        "work for %s failed: a bug; the controller hears nothing and asks again", lane
                    )


def lane_of(verb: str, args: BaseModel) -> Hashable:
    """The job's, for what changes it; else one of its own."""
    job_id = getattr(args, "job_id", None)
    return job_id if job_id is not None and verb not in BESIDE else (verb, job_id)


class Server:
    """Reads requests, has them carried out, writes answers as they come."""

    def __init__(self, agent: NodeAgent, output: int) -> None:
        self._agent = agent
        self._output = output
        self._writing = threading.Lock()
        self._lanes = Lanes()
        self._gone = threading.Event()
        self._whose = protocol.HelloArgs()

    def serve(self, lines: Iterator[bytes | None]) -> None:
        """Until the input ends or the output breaks."""
        try:
            for line in lines:
                if self._gone.is_set():
                    break
                if line is None:
                    self._fail(None, bad_request(f"a line of more than {protocol.MAX_LINE_BYTES} bytes"))
                elif line.strip():
                    self._accept(line)
        except (OSError, Stop) as error:
            log.info("no more requests: %s", error)
        if not self._lanes.close(FINISH_SECONDS):
            log.error(
                "gave up on work in flight after %g s: the next agent goes on from the control blocks",
                FINISH_SECONDS,
            )

    def _accept(self, line: bytes) -> None:
        number: int | None = None
        try:
            request = protocol.Request.model_validate_json(line)
            number = request.id
            if request.verb not in protocol.VERBS:
                raise bad_request(f"verb: {request.verb!r} is none of {', '.join(protocol.VERBS)}")
            args = protocol.VERBS[request.verb].model_validate(request.args)
            deadline = Deadline(request.deadline_seconds)  # waiting in the lane counts
            self._lanes.submit(lane_of(request.verb, args), lambda: self._carry_out(request, args, deadline))
        except ValueError as error:
            said = describe_errors(error) if isinstance(error, ValidationError) else str(error)
            self._fail(number, bad_request(said))
        except AgentError as error:
            self._fail(number, error)

    def _carry_out(self, request: protocol.Request, args: BaseModel, deadline: Deadline) -> None:
        try:
            if isinstance(args, protocol.HelloArgs) and args.controller is not None:
                self._whose = args
            self._agent.admit(self._whose, request.verb)
            result = self._agent.carry_out(request.verb, args, deadline)
            self._write(Answer(id=request.id, ok=True, result=protocol.result_as_json(result)))
        except AgentError as error:
            log.info("%s: %s: %s", request.verb, error.kind.value, error.message)
            self._fail(request.id, error, args)
        except Exception as error:
            log.exception("%s %s: a bug; the controller hears of it", request.verb, request.args)
            message = f"{request.verb}: {type(error).__name__}: {error}"
            self._fail(request.id, AgentError(ErrorKind.INTERNAL, message), args)

    def _fail(self, number: int | None, error: AgentError, args: BaseModel | None = None) -> None:
        job_id = getattr(args, "job_id", None)
        body = ErrorBody(kind=error.kind, message=error.message, job_id=job_id)
        self._write(Answer(id=number, ok=False, error=body))

    def _write(self, answer: Answer) -> None:
        data = protocol.encode(_within_limit(answer))
        with self._writing:
            try:
                while data and not self._gone.is_set():
                    data = data[os.write(self._output, data) :]
            except OSError:
                self._gone.set()


def _within_limit(answer: Answer) -> Answer:
    """A node full of many-rank jobs: leave out what the controller can do without."""
    if answer.result is None or len(answer.model_dump_json()) < protocol.MAX_LINE_BYTES:
        return answer
    result: dict[str, Any] = dict(answer.result)
    result["jobs"] = [{**job, "ranks": job["ranks"][:1]} for job in result.get("jobs", [])]
    return answer.model_copy(update={"result": result})


def describe_errors(error: ValidationError) -> str:
    """Pydantic's errors in one line: place, what is wrong, what was given."""
    parts = []
    for item in error.errors(include_url=False)[:4]:
        place = ".".join(str(part) for part in item["loc"]) or "request"
        parts.append(f"{place}: {item['msg']} (given: {str(item.get('input'))[:80]!r})")
    return "; ".join(parts)


def _start_logging(node: str, trials: bool) -> None:
    handler: logging.Handler
    when = "%(asctime)s " if trials else ""
    if trials:
        handler = logging.StreamHandler()  # a file of the study
    elif SYSLOG.is_socket():
        handler = logging.handlers.SysLogHandler(str(SYSLOG), logging.handlers.SysLogHandler.LOG_DAEMON)
        handler.ident = f"gandiva-agent[{os.getpid()}]: "
    else:
        handler = logging.StreamHandler()
        handler.setLevel(logging.WARNING)  # standard error is the SSH channel's: say little there
    logging.raiseExceptions = False  # a syslog that restarts is no reason to fill the channel with tracebacks
    handler.setFormatter(logging.Formatter(f"{when}{node}: %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. 0: the input ended; 2: started wrongly."""
    try:
        settings = parse_command(sys.argv[1:] if arguments is None else arguments, os.environ)
        if settings.trials:
            make_room(settings.run_dir)
    except AgentError as error:
        body = ErrorBody(kind=error.kind, message=error.message)
        sys.stdout.buffer.write(protocol.encode(Answer(id=None, ok=False, error=body)))
        sys.stdout.flush()
        return 2
    _start_logging(settings.node, settings.trials)
    # Several slurmd on one host (tests do that): children and libraries learn which node this is.
    os.environ["SLURMD_NODENAME"] = settings.node
    os.umask(0o022)
    # Answers go to a descriptor of their own: a library that prints must not break the protocol.
    output = os.dup(1)
    os.dup2(2, 1)
    driver = DriverProcesses()
    agent = NodeAgent(settings, GpuReader(NvmlSource()), driver)
    agent.start()
    signal.signal(signal.SIGTERM, _stop)
    Server(agent, output).serve(read_lines(0))
    driver.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
