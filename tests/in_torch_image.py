# SPDX-License-Identifier: GPL-2.0-or-later
"""`make torch`: the tests of the job side with a real PyTorch, in a container of the image that has one.

    python -m tests.in_torch_image [ARGUMENTS OF PYTEST]

The image is made where it is missing. The container gets a copy of the sources and of the tests, has no
network but its own loopback, and is removed at the end. A test that needs PyTorch fails there, and does not
skip, when PyTorch cannot be imported. The status is pytest's.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import docker.errors

from container import engine, images
from container.errors import MiniClusterError
from container.execute import execute, put_files
from tests.unit.draws import DEPTH
from tests.unit.jobside.need_torch import REQUIRED

SOURCES: Final = (
    *("controller", "checkpointing", "gandiva", "container/mock_gpu", "examples", "pyproject.toml"),
    *("tests/__init__.py", "tests/unit/__init__.py", "tests/unit/conftest.py", "tests/unit/draws.py"),
    "tests/unit/mounts.py",
    *("benchmarks/__init__.py", "benchmarks/realgpu/worker.py"),
    *("tests/unit/jobside", "tests/unit/nodes/__init__.py", "tests/unit/nodes/conftest.py"),
    "tests/unit/nodes/test_ddp.py",
    *("tests/unit/checkpointing/__init__.py", "tests/unit/checkpointing/conftest.py"),
    "tests/unit/checkpointing/torch_ranks.py",
    *("tests/unit/checkpointing/test_state.py", "tests/unit/checkpointing/test_fsdp.py"),
    "tests/unit/checkpointing/test_loaders.py",
)
TESTS: Final = (
    "tests/unit/jobside",
    "tests/unit/nodes/test_ddp.py",
    *("tests/unit/checkpointing/test_state.py", "tests/unit/checkpointing/test_fsdp.py"),
    "tests/unit/checkpointing/test_loaders.py",
)
SOURCE_IN_CONTAINER: Final = "/root/src"
PYTHON: Final = "/opt/gandiva/venv/bin/python"
LIMIT_SECONDS: Final = 900.0
WORKERS: Final = ("-n", "3", "--dist", "worksteal")


def run(client: Any, image: str, arguments: list[str]) -> int:
    """The status of pytest in a container of this image.

    Raises:
        MiniClusterError: the container does not answer, or pytest has no end within LIMIT_SECONDS.
    """
    container = client.containers.create(
        image,
        ["sleep", str(round(LIMIT_SECONDS) + 60)],
        labels={images.LABEL: "torch-tests"},  # `gandiva-cluster clean` removes what has it.
        network_mode="none",
        init=True,
    )
    try:
        container.start()
        files = images.source_files(images.REPOSITORY_ROOT, SOURCES)
        put_files(
            client, container.id, {f"{SOURCE_IN_CONTAINER}/{path}": file for path, file in files.items()}
        )
        return execute(
            client,
            container.id,
            [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", *WORKERS, *arguments],
            host="the container",
            timeout_seconds=LIMIT_SECONDS,
            check=False,
            # One thread: those of PyTorch spin while they wait, and the tensors are small.
            env={REQUIRED: "1", "OMP_NUM_THREADS": "1", DEPTH: os.environ.get(DEPTH, "")},
            workdir=SOURCE_IN_CONTAINER,
            on_output=show,
        ).exit_code
    finally:
        container.remove(force=True)


def show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Run them; the exit status is pytest's, or 1 where no container can be had."""
    try:
        client = engine.connect(report=report)
        image = images.Images(client, report=report).ensure_torch()
        nightly = os.environ.get(DEPTH) == "nightly"
        return run(client, image, sys.argv[1:] or [*TESTS, *([] if nightly else ["-m", "not nightly"])])
    except (MiniClusterError, docker.errors.DockerException, OSError) as error:
        report(f"error: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
