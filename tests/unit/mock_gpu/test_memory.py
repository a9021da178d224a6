# SPDX-License-Identifier: GPL-2.0-or-later
"""Who holds how much GPU memory, and what happens when there is no more."""

from __future__ import annotations

import pytest

from tests.unit.mock_gpu.bench import (
    CONTEXT,
    GIB,
    MIB,
    NO_DEVICE,
    NOT_INITIALIZED,
    OUT_OF_MEMORY,
    CallError,
    Node,
    wait_until,
)


def test_contexts_and_allocations_are_counted_and_given_back(node: Node) -> None:
    one, other = node.worker(), node.worker()
    address = one.ask("alloc", 0, 3 * GIB)
    other.ask("alloc", 0, GIB)
    assert node.on_gpu(0) == {one.pid: CONTEXT + 3 * GIB, other.pid: CONTEXT + GIB}
    assert node.used(1) == 0
    # Both see the same free memory, whoever uses the rest.
    assert one.ask("memory", 0) == other.ask("memory", 0) == [80 * GIB - 2 * CONTEXT - 4 * GIB, 80 * GIB]
    one.ask("free", 0, address)
    assert node.on_gpu(0)[one.pid] == CONTEXT
    one.ask("destroy", 0)  # nothing is left, though the process lives
    assert node.on_gpu(0) == {other.pid: CONTEXT + GIB}
    other.finish()
    assert node.used() == 0


def test_small_allocations_share_pages_of_two_mib(node: Node) -> None:
    worker = node.worker()
    addresses = [worker.ask("alloc", 0, 100_000) for _ in range(20)]  # 20 * 100,352 = 1.9 MiB
    assert node.used() == CONTEXT + 2 * MIB
    worker.ask("alloc", 0, 200_000)
    assert node.used() == CONTEXT + 4 * MIB
    for address in addresses:
        worker.ask("free", 0, address)
    assert node.used() == CONTEXT + 2 * MIB


def test_memory_runs_out_over_all_processes(bare_node: Node) -> None:
    node = bare_node.init("--memory", "4GiB", "--context-memory", "500MiB")
    one, other = node.worker(), node.worker()
    one.ask("alloc", 0, 2 * GIB)
    assert other.code("alloc", 0, 2 * GIB) == OUT_OF_MEMORY
    other.ask("alloc", 0, GIB)
    assert node.worker(device=None).code("context", 0) == OUT_OF_MEMORY  # 24 MiB are left
    assert node.worker(device=1).code("alloc", 0, 3 * GIB) == 0  # the other GPU is empty


def test_a_killed_process_leaves_nothing_behind(bare_node: Node) -> None:
    node = bare_node.init("--memory", "4GiB")
    first = node.worker(job=1)
    first.ask("alloc", 0, 3 * GIB)
    second = node.worker(job=2)
    assert second.code("alloc", 0, 3 * GIB) == OUT_OF_MEMORY
    first.kill()
    second.ask("alloc", 0, 3 * GIB)  # at once, without anybody cleaning up in between
    assert node.on_gpu(0) == {second.pid: CONTEXT + 3 * GIB}
    assert [e["event"] for e in node.history("--job", "1")] == ["context-create", "alloc", "reap"]


def test_contents_survive_and_depend_on_every_kernel(node: Node) -> None:
    one, other = node.worker(), node.worker(device=1)
    digests = []
    for worker, seeds in ((one, [1, 2, 3]), (other, [1, 2, 3]), (other, [1, 3, 2])):
        address = worker.ask("alloc", 0, 4096)
        worker.ask("fill", 0, address, 7, 4096)
        for seed in seeds:
            worker.ask("step", 0, 10, 50, address, 4096, seed)
        digests.append(worker.ask("digest", 0, address, 4096))
    assert digests[0] == digests[1] != digests[2]


def test_a_kernel_outside_of_its_buffer_is_an_illegal_address(node: Node) -> None:
    worker = node.worker()
    address = worker.ask("alloc", 0, 4096)
    assert worker.code("step", 0, 10, 50, address, 8192, 1) == 700


def test_cuda_does_not_survive_a_fork(node: Node) -> None:
    worker = node.worker()
    assert worker.ask("forked_alloc") == NOT_INITIALIZED
    assert node.on_gpu(0) == {worker.pid: CONTEXT}  # and the child's end took nothing with it


def test_another_program_in_the_same_process_holds_nothing(node: Node) -> None:
    worker = node.worker()
    worker.send("become_sleep")
    wait_until(lambda: node.used() == 0)
    assert worker.alive()


def test_only_devices_that_may_be_opened_are_visible(bare_node: Node) -> None:
    node = bare_node.init(gpus=4)
    all_uuids = [gpu["uuid"] for gpu in node.show()["gpus"]]
    (node.devices / "nvidia0").unlink()
    (node.devices / "nvidia2").unlink()
    assert node.worker(device=None).ask("uuids") == [all_uuids[1], all_uuids[3]]
    # CUDA_VISIBLE_DEVICES counts among those, or names them.
    assert node.worker(device=None, CUDA_VISIBLE_DEVICES="1").ask("uuids") == [all_uuids[3]]
    by_uuid = node.worker(device=None, CUDA_VISIBLE_DEVICES=f"{all_uuids[3]},{all_uuids[1]},9,0")
    assert by_uuid.ask("uuids") == [all_uuids[3], all_uuids[1]]
    worker = node.worker(device=0, CUDA_VISIBLE_DEVICES="1")
    assert list(node.on_gpu(3)) == [worker.pid]


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles", "0,0"])
def test_no_visible_device_is_an_error_of_init(node: Node, visible: str) -> None:
    with pytest.raises(CallError) as error:
        node.bare_worker(CUDA_VISIBLE_DEVICES=visible).ask("init")
    assert error.value.code == NO_DEVICE


def test_a_machine_without_mock_gpus_has_no_device(bare_node: Node) -> None:
    assert bare_node.bare_worker().code("init") == NO_DEVICE
    assert bare_node.run("show", check=False).returncode == 2


def test_setting_up_anew_forgets_everything(node: Node) -> None:
    worker = node.worker()
    node.init("--memory", "1GiB")
    assert node.used() == 0
    assert worker.code("alloc", 0, MIB) != 0  # the old process has lost its GPU
    node.worker()
