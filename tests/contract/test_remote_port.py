# SPDX-License-Identifier: GPL-2.0-or-later
"""The port to another host, when what is there does not answer. (No cluster is needed here.)"""

from __future__ import annotations

import asyncio
import sys

import pytest

from controller.model import JobId
from tests.contract.remote_port import RemotePort


async def test_a_server_that_ends_is_an_error_now_and_later() -> None:
    port = await RemotePort.start(sys.executable, "-c", "input()")
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(port.suspend(JobId(7)), 20)
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(port.observe(), 20)
    await port.close()
