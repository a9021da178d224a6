# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs with more steps than any test waits for, which end as soon as the test has seen enough of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.live.support import Site


@contextmanager
def hurried(site: Site) -> Iterator[None]:
    """Meanwhile kernels take next to no time on every GPU."""
    for node in site.nodes:
        site.cluster.exec(node, ["mockgpu", "inject", "speed", "--value", "20000"])
    try:
        yield
    finally:
        for node in site.nodes:
            site.cluster.exec(node, ["mockgpu", "inject", "--clear"])
