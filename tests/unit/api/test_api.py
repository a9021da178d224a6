# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from controller.api import answers as answers_module
from controller.api import messages
from controller.api import server as server_module
from controller.api.answers import Answers
from controller.api.client import ApiClient, ApiRefused, ApiUnavailable
from controller.api.live import Health, LiveState
from controller.api.server import ApiServer
from controller.errors import GandivaError
from controller.journal import JobFilter, JournalReader
from controller.model import JobId, Placement, Snapshot

from . import scene


@pytest.fixture
def answers(tmp_path: Path) -> Answers:
    scene.write_journal(tmp_path / "j")
    return Answers(scene.live_state(), JournalReader(tmp_path / "j"))


@pytest.fixture
def server(answers: Answers) -> Iterator[ApiServer]:
    api = ApiServer("127.0.0.1:0", answers)
    api.start()
    yield api
    api.stop()


@pytest.fixture
def client(server: ApiServer) -> ApiClient:
    return ApiClient(f"http://127.0.0.1:{server.port}")


@pytest.fixture(autouse=True)
def fast_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "POLL_SECONDS", 0.02)


# -- what it answers ---------------------------------------------------------------------------


def test_gpus_tell_who_is_on_them_and_who_waits(client: ApiClient) -> None:
    answer = client.gpus()
    n1, n2 = answer.nodes
    assert [gpu.running for gpu in n1.gpus] == [[101], [103], [103], []]
    assert [gpu.waiting for gpu in n1.gpus] == [[102]] * 4, "a floating job waits for all GPUs of its binding"
    assert n2.gpus[3].ordinary_job == 900
    assert n1.gpus[0].memory_used_bytes == int(20 * scene.GIB * 0.97)
    waiting = next(job for job in answer.jobs if job.job_id == 102)
    assert (waiting.phase, waiting.running_on, waiting.weight) == ("suspended", [], 1.0)
    assert (waiting.reason, waiting.reason_code) == (scene.REASONS[JobId(102)], "waits-for-turn")
    assert next(job for job in answer.jobs if job.job_id == 104).busy


def test_use_comes_from_the_controller_and_progress_from_the_nodes(client: ApiClient) -> None:
    running, suspended, *_, queued = client.gpus().jobs
    assert (running.run_seconds, running.gpu_seconds) == (450.0, 450.0), "the slice that goes on counts"
    assert (running.steps_done, running.step_seconds) == (1800, 0.25)
    assert (suspended.run_seconds, suspended.step_seconds, suspended.busy) == (450.0, 0.25, False)
    assert (queued.run_seconds, queued.steps_done, queued.step_seconds) == (0.0, 0, None)
    assert client.explain(101).job.step_seconds == 0.25  # type: ignore[union-attr]


def test_jobs_that_share_gpus_name_each_other(client: ApiClient, answers: Answers) -> None:
    base, gpus = scene.snapshot(), scene.on("n2", 0, 1)
    jobs = {
        JobId(one): replace(base.jobs[JobId(one)], placement=Placement(gpus, gpus, frozenset({JobId(other)})))
        for one, other in ((103, 104), (104, 103))
    }
    answers._live.publish(scene.cycle(replace(base, jobs={**base.jobs, **jobs})), Health("gandiva", 0))
    found = client.gpus()
    assert {job.job_id: job.shares_with for job in found.jobs if job.shares_with} == {103: [104], 104: [103]}
    assert [gpu.running for gpu in found.nodes[1].gpus[:2]] == [[103, 104]] * 2
    assert client.explain(103).live.shares_with == [104]  # type: ignore[union-attr]
    assert [job.shares_with for job in client.jobs(JobFilter(job_ids=(102, 104))).jobs] == [[], [103]]


def test_the_timeline_has_the_slices_of_a_span_of_time(client: ApiClient) -> None:
    (piece,) = client.timeline(scene.NOW - 7000, scene.NOW, 10).slices
    assert (piece.job_id, piece.gpus, piece.reason) == (100, ["n1:0", "n1:1"], "its slice is over")
    assert (piece.start, piece.end) == (scene.NOW - 8000, scene.NOW - 6200)
    assert client.timeline(scene.NOW - 6000, scene.NOW, 10).slices == []
    assert client.timeline(scene.NOW - 7000, scene.NOW, 1).truncated


def test_jobs_come_from_the_journal_with_what_is_known_now(client: ApiClient) -> None:
    answer = client.jobs(JobFilter())
    assert [job.job_id for job in answer.jobs] == [100, 101, 102, 103, 104, 105]
    done = answer.jobs[0]
    assert (done.run_seconds, done.gpu_seconds, done.slices, done.phase) == (1800, 3600, 1, None)
    assert done.reason == "its slice is over"
    queued = answer.jobs[-1]
    assert (queued.phase, queued.reason, queued.state) == ("queued", "no node has 4 free GPUs", "PENDING")


@pytest.mark.parametrize(
    ("which", "found"),
    [
        (JobFilter(job_ids=(100, 105)), [100, 105]),
        (JobFilter(users=("carol", "dave")), [103, 104, 105]),
        (JobFilter(states=("COMPLETED",), partitions=("gpu",), accounts=("vision",)), [100]),
        (JobFilter(start=scene.NOW - 4000), [101, 102, 103, 104, 105]),
        (JobFilter(end=scene.NOW - 5000), [100]),
        (JobFilter(users=("nobody&limit=1",)), []),
    ],
)
def test_filters_reach_the_journal(client: ApiClient, which: JobFilter, found: list[int]) -> None:
    assert [job.job_id for job in client.jobs(which).jobs] == found


def test_a_bounded_answer_says_that_there_is_more(client: ApiClient) -> None:
    answer = client.jobs(JobFilter(limit=2))
    assert [job.job_id for job in answer.jobs] == [104, 105]
    assert answer.truncated


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 10])
def test_more_ids_than_one_request_takes_are_one_list_with_one_limit(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    ids = (105, 100, 103, 101, 104, 102)
    monkeypatch.setattr(messages, "MAX_NAMES", 2)
    answer = client.jobs(JobFilter(job_ids=ids, limit=limit))
    assert [job.job_id for job in answer.jobs] == sorted(ids)[-limit:]
    assert answer.truncated or limit > 5


def test_explain_names_the_rivals(client: ApiClient) -> None:
    answer = client.explain(102)
    assert answer.live is not None and answer.live.reason_code == "waits-for-turn"
    assert [rival.job_id for rival in answer.rivals] == [101, 103]
    over = client.explain(100)
    assert over.live is None and over.rivals == []
    assert [decision.reason_code for decision in over.decisions] == ["turn-over"]
    waits = client.explain(105)
    assert [rival.job_id for rival in waits.rivals] == [104], "Slurm has not started it yet"
    assert [decision.action for decision in over.decisions] == ["suspend"]
    assert over.slices[0].gpus == ["n1:0", "n1:1"]
    assert [event.kind for event in over.events] == ["suspended"]


def test_explain_of_an_unknown_job(client: ApiClient) -> None:
    with pytest.raises(ApiRefused, match="knows no job 7777"):
        client.explain(7777)


def test_status(client: ApiClient) -> None:
    status = client.status()
    assert status.healthy and status.policy == "gandiva" and status.ticks == 3600
    assert status.jobs_by_phase == {"running": 2, "suspended": 1, "starting": 1, "queued": 1}
    assert status.gpus_by_use == {"running": 5, "ordinary": 1, "idle": 2}
    assert [event.kind for event in status.events] == ["suspended", "node_lost"]


def test_status_tells_of_trouble(tmp_path: Path) -> None:
    live = LiveState()
    live.publish(scene.cycle(), Health("fifo", 0, problems=("Slurm does not answer",)))
    answer = json.loads(
        Answers(live, JournalReader(tmp_path / "none"), stale_seconds=-1).get("/v1/status", {}).body
    )
    assert not answer["healthy"]
    assert answer["problems"][0] == "Slurm does not answer"
    assert "has completed no cycle" in answer["problems"][1]
    assert "there is no journal" in answer["problems"][2]


def test_before_the_first_turn(tmp_path: Path) -> None:
    fresh = Answers(LiveState(), JournalReader(tmp_path / "none"))
    for path in ("/v1/status", "/v1/gpus"):
        answer = fresh.get(path, {})
        assert answer.status == 503 and b"just started" in answer.body
    assert fresh.get("/healthz", {}).status == 503
    assert b"gandiva_up 0.0\n" in fresh.get("/metrics", {}).body


def test_healthz_fails_when_the_loop_stands_still(answers: Answers) -> None:
    assert answers.get("/healthz", {}).status == 200
    trouble = Health("gandiva", 0, problems=("Slurm cannot be observed: no answer",))
    # Trouble is published too, while no cycle is completed.
    answers._live.publish(scene.cycle(), trouble, completed=time.monotonic() - 61)
    answer = answers.get("/healthz", {})
    assert answer.status == 503
    assert answer.body == (b"the loop has completed no cycle for 61 s: Slurm cannot be observed: no answer\n")


def test_one_answer_is_built_per_tick(answers: Answers) -> None:
    live = answers._live
    first = live.latest
    assert first is not None and first.message is first.message
    live.publish(scene.cycle(), Health("gandiva", 0))
    assert live.latest is not None and live.latest.message is not first.message


# -- what clients send -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/v1/jobs?jobs=abc", 400, "not a job id"),
        ("/v1/jobs?jobs=1,2;drop", 400, "not a job id"),
        ("/v1/jobs?colour=red", 400, "no such parameter: colour"),
        ("/v1/jobs?start=yesterday", 400, "seconds since the epoch"),
        ("/v1/jobs?start=nan", 400, "seconds since the epoch"),
        ("/v1/jobs?limit=99999999", 400, "up to 10000"),
        ("/v1/jobs?user=" + ",".join(["u"] * 1001), 400, "at most 1000"),
        ("/v1/explain/../../etc/passwd", 400, "not a job id"),
        ("/v1/explain/", 400, "not a job id"),
        ("/etc/passwd", 404, "no such page"),
        ("/" + "x" * 70_000, 414, ""),
        ("/v1/jobs?" + "&".join(["user=x"] * 200), 400, ""),
    ],
)
def test_mistakes_get_one_clear_answer(server: ApiServer, target: str, status: int, text: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", target)
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    assert response.status == status
    assert text in body and "Traceback" not in body
    assert len(body) < 1500


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "JUNK"])
def test_only_get(server: ApiServer, method: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, "/v1/status", body=b"{}")
    assert connection.getresponse().status == 501
    connection.close()


def test_head_is_get_without_the_body(server: ApiServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("HEAD", "/healthz")
    response = connection.getresponse()
    assert (response.status, response.getheader("Content-Length"), response.read()) == (200, "3", b"")
    connection.close()


def test_a_bug_is_an_error_for_the_client_and_in_the_log(
    server: ApiServer, answers: Answers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(answers, "get", bug)
    with pytest.raises(ApiRefused, match="internal error"):
        ApiClient(f"http://127.0.0.1:{server.port}").status()
    assert "a bug" in caplog.text


def cut_off(sock: socket.socket) -> bool:
    """Whether the server ends the connection (before the test's own deadline)."""
    sock.settimeout(60)
    try:
        while sock.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def test_a_client_that_sends_slowly_is_cut_off(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 1.0)
    api = ApiServer("127.0.0.1:0", answers)
    api.start()
    try:
        with socket.create_connection(("127.0.0.1", api.port)) as sock:
            sock.sendall(b"GET /v1/gp")
            assert cut_off(sock)
        with socket.create_connection(("127.0.0.1", api.port)) as sock:
            sock.sendall(b"GET /healthz HTTP/1.0\r\n")
            for letter in b"X-Slow: " + b"y" * 1000:  # One letter at a time is no reason to wait longer.
                try:
                    sock.sendall(bytes([letter]))
                except OSError:
                    break
                time.sleep(0.02)
            else:
                pytest.fail("never cut off")
        monkeypatch.setattr(server_module, "REQUEST_SECONDS", 60.0)
        assert ApiClient(f"http://127.0.0.1:{api.port}").status().ticks == 3600
    finally:
        api.stop()


def asked(port: int, source: str, path: str = "/healthz") -> int:
    """Status of a fresh request from an address of this machine; 0: cut off, or no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(source, 0))
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def idle_connection(port: int, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(source, 0))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is cut for being slow: who is answered was not kept waiting for that."""
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 600.0)
    monkeypatch.setattr(server_module, "CONNECTION_SECONDS", 600.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    "sent", [b"", b"GET /v1/gp", b"GET /healthz HTTP/1.0\r\nX: "], ids=["", "line", "headers"]
)
def test_a_client_that_holds_connections_keeps_nobody_out(server: ApiServer, sent: bytes) -> None:
    """Not other addresses, and not the same one: a probe on the controller's host asks from there."""
    held = [idle_connection(server.port, "127.0.0.1") for _ in range(40)]
    for sock in held:
        sock.sendall(sent)
    try:
        for source in ("127.0.0.2", "127.0.0.1", "127.0.0.2"):
            for path in ("/healthz", "/v1/status", "/metrics"):
                assert asked(server.port, source, path) == 200, (source, path)
    finally:
        for sock in held:
            sock.close()


@pytest.mark.usefixtures("patient")
def test_many_addresses_that_hold_connections_keep_nobody_out(server: ApiServer) -> None:
    """More than the server has room for in all."""
    sources = [f"127.0.1.{number}" for number in range(1, 12)]
    held = [idle_connection(server.port, source) for source in sources for _ in range(10)]
    try:
        for source in ("127.0.0.2", sources[0]):
            assert asked(server.port, source) == 200
    finally:
        for sock in held:
            sock.close()


@pytest.mark.usefixtures("patient")
def test_clients_that_do_not_read_their_answers_keep_nobody_out(
    server: ApiServer, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = answers_module.Answer(200, b"x" * (64 << 20))
    healthz = answers.get("/healthz", {})
    monkeypatch.setattr(answers, "get", lambda path, *_: healthz if path == "/healthz" else large)
    held = [idle_connection(server.port, "127.0.0.1") for _ in range(40)]
    for sock in held:
        sock.sendall(b"GET /v1/jobs HTTP/1.0\r\n\r\n")
    try:
        for source in ("127.0.0.2", "127.0.0.1"):
            assert asked(server.port, source) == 200
    finally:
        for sock in held:
            sock.close()


@pytest.mark.usefixtures("patient")
def test_who_is_being_answered_keeps_the_place(
    server: ApiServer, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newcomers of the same address are turned away then, and others served."""
    monkeypatch.setattr(server_module, "MAX_CLIENTS_OF_ADDRESS", 2)
    begun, go = threading.Semaphore(0), threading.Event()
    healthz = answers.get("/healthz", {})

    def slow(path: str, *_: object) -> answers_module.Answer:
        if path != "/healthz":
            begun.release()
            assert go.wait(60)
        return healthz

    monkeypatch.setattr(answers, "get", slow)
    working = [idle_connection(server.port, "127.0.0.1") for _ in range(2)]
    try:
        for sock in working:
            sock.sendall(b"GET /v1/jobs HTTP/1.0\r\n\r\n")
            assert begun.acquire(timeout=60)
        assert asked(server.port, "127.0.0.1") == 0
        assert asked(server.port, "127.0.0.2") == 200
        go.set()
        for sock in working:
            assert sock.recv(100).startswith(b"HTTP/1.0 200")
    finally:
        go.set()
        for sock in working:
            sock.close()


def test_a_taken_port_is_named(server: ApiServer, answers: Answers) -> None:
    taken = f"127.0.0.1:{server.port}"
    with pytest.raises(GandivaError, match=f"cannot listen on {taken}: Address already in use"):
        ApiServer(taken, answers)


def test_an_address_that_is_not_here(answers: Answers) -> None:
    with pytest.raises(GandivaError, match=r"api\.listen"):
        ApiServer("192.0.2.1:7000", answers)


def test_ipv6(answers: Answers) -> None:
    try:
        api = ApiServer("[::1]:0", answers)
    except GandivaError as error:
        pytest.skip(f"no IPv6 here: {error}")
    api.start()
    assert ApiClient(f"http://[::1]:{api.port}").status().ticks == 3600
    api.stop()


def test_publishing_while_many_read(answers: Answers, server: ApiServer) -> None:
    """Every answer is whole: it belongs to one published state, never to a mixture of two."""
    base = scene.snapshot()
    stop = threading.Event()

    def publish() -> None:
        tick = 0
        while not stop.is_set():
            tick += 1
            seen = Snapshot(time=float(tick), nodes=base.nodes, jobs=base.jobs)
            turn = scene.cycle(seen, dict.fromkeys(base.jobs, f"tick {tick}"))
            answers._live.publish(turn, Health("x", 0))
            time.sleep(0.0005)

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        client = ApiClient(f"http://127.0.0.1:{server.port}")
        for _ in range(50):
            answer = client.gpus()
            if answer.time != scene.NOW:
                assert {job.reason for job in answer.jobs} == {f"tick {answer.time:.0f}"}
    finally:
        stop.set()
        publisher.join()


# -- the client --------------------------------------------------------------------------------


def answering(respond: Any) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            respond(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    fake = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{fake.server_address[1]}"
    finally:
        fake.shutdown()
        thread.join()
        fake.server_close()


def test_nobody_there() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    with pytest.raises(
        ApiUnavailable, match=rf"cannot reach .* at {url} \(Connection refused\).*systemctl status"
    ):
        ApiClient(url).status()


def test_no_such_host() -> None:
    with pytest.raises(ApiUnavailable, match="no such host name"):
        ApiClient("http://no-such-host.invalid:6822").status()


def test_a_server_that_never_answers() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as sock,
        pytest.raises(ApiUnavailable, match=r"within 0\.2 s"),
    ):
        ApiClient(f"http://127.0.0.1:{sock.getsockname()[1]}", deadline_seconds=0.2).status()


def test_a_server_that_dribbles_for_ever() -> None:
    done = threading.Event()

    def respond(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not done.wait(0.02):
            try:
                handler.wfile.write(b" ")
            except OSError:
                return

    for url in answering(respond):
        with pytest.raises(ApiUnavailable, match=r"within 0\.3 s"):
            ApiClient(url, deadline_seconds=0.3).status()
        done.set()


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, b"<html>hello</html>", "not Gandiva's"),
        (200, b'{"time": 1}', "not Gandiva's"),
        (200, b'{"time": "x", "jobs": 3}', "not Gandiva's"),
        (404, b'{"error": "no such thing"}', "no such thing"),
        (500, b"oops", "HTTP status 500"),
        (500, b"[]", "HTTP status 500"),
    ],
)
def test_answers_that_make_no_sense(status: int, body: bytes, message: str) -> None:
    def respond(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    for url in answering(respond):
        with pytest.raises(ApiRefused, match=message):
            ApiClient(url).status()


def test_an_answer_cut_short() -> None:
    def respond(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"{")

    for url in answering(respond):
        with pytest.raises(ApiUnavailable, match="cannot reach"):
            ApiClient(url).status()


def test_something_that_is_not_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:

        def respond() -> None:
            peer, _ = sock.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=respond)
        thread.start()
        with pytest.raises(ApiUnavailable, match="not an HTTP answer"):
            ApiClient(f"http://127.0.0.1:{sock.getsockname()[1]}").status()
        thread.join()


def test_a_proxy_in_the_environment_is_not_used(client: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert client.status().ticks == 3600


# -- documentation -----------------------------------------------------------------------------


def test_every_key_of_every_answer_is_documented() -> None:
    from controller.api import messages

    page = (Path(__file__).resolve().parents[3] / "docs" / "reports.md").read_text()
    for kind in vars(messages).values():
        if isinstance(kind, type) and issubclass(kind, messages.Message):
            for key in kind.model_fields:
                assert f"`{key}`" in page or f'"{key}"' in page, f"{kind.__name__}.{key}"


def test_few_answers_are_made_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else clients that ask for all jobs again and again leave the loop no time."""
    scene.write_journal(tmp_path / "journal")
    made = Answers(scene.live_state(), JournalReader(tmp_path / "journal"))
    busy, go = threading.Semaphore(0), threading.Event()

    def slow(*_: object, **__: object) -> list[object]:
        busy.release()
        assert go.wait(60)
        return []

    monkeypatch.setattr(made._journal, "jobs", slow)
    monkeypatch.setattr(answers_module, "WAIT_SECONDS", 0.05)
    clients = [
        threading.Thread(target=made.get, args=("/v1/jobs", {})) for _ in range(answers_module.MADE_AT_ONCE)
    ]
    for client in clients:
        client.start()
        assert busy.acquire(timeout=60)
    refused = made.get("/v1/jobs", {})
    assert refused.status == 503 and b"too many requests at once" in refused.body
    assert made.get("/healthz", {}).status == 200
    go.set()
    for client in clients:
        client.join(60)
    assert made.get("/v1/status", {}).status == 200
