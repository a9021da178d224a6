# SPDX-License-Identifier: GPL-2.0-or-later
"""`/metrics` in the Prometheus text format: prefix `gandiva_`, base units, counters end in `_total`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from controller import __version__
from controller.api.live import Published, uses
from controller.model import Phase

Sample = tuple[Mapping[str, str], float]


def exposition(published: Published | None) -> str:
    """All metrics. Before the first turn of the loop only `gandiva_up 0`."""
    return "".join(_lines(published))


def _lines(published: Published | None) -> Iterator[str]:
    yield from _metric(
        "up", "gauge", "1 once the loop has looked at the cluster.", [({}, float(published is not None))]
    )
    yield from _metric(
        "build_info", "gauge", "The version of the controller.", [({"version": __version__}, 1.0)]
    )
    if published is None:
        return
    snapshot, health = published.snapshot, published.health
    yield from _metric(
        "start_time_seconds", "gauge", "When the controller started, since the epoch.", [({}, health.started)]
    )
    yield from _metric("ticks_total", "counter", "Turns of the loop.", [({}, float(health.ticks))])
    yield from _metric("tick_seconds", "gauge", "Time the last turn took.", [({}, health.tick_seconds)])
    yield from _metric(
        "published_age_seconds", "gauge", "Time since the last turn.", [({}, published.age_seconds)]
    )
    yield from _metric(
        "problems",
        "gauge",
        "Things that are wrong now; see gandiva status.",
        [({}, float(len(health.problems)))],
    )
    phases = Counter(job.phase for job in snapshot.jobs.values())
    yield from _metric(
        "jobs", "gauge", "Gandiva jobs by phase.", [({"phase": p.value}, float(phases[p])) for p in Phase]
    )
    by_use = uses(snapshot)
    kinds = ("running", "ordinary", "idle", "unavailable")
    yield from _metric("gpus", "gauge", "GPUs by use.", [({"use": k}, float(by_use[k])) for k in kinds])
    yield from _metric(
        "node_up", "gauge", "Whether jobs can start on a node.",
        [({"node": n.name}, float(n.available)) for n in snapshot.nodes.values()],
    )  # fmt: skip
    cards = [gpu for node in snapshot.nodes.values() for gpu in node.gpus]
    labels = [{"node": gpu.id.node, "gpu": str(gpu.id.ordinal), "model": gpu.model} for gpu in cards]
    yield from _metric(
        "gpu_utilization_ratio", "gauge", "Utilisation of a GPU as NVML says it.",
        [(label, g.utilization_fraction) for label, g in zip(labels, cards, strict=True)
         if g.utilization_fraction is not None],
    )  # fmt: skip
    yield from _metric(
        "gpu_memory_used_bytes", "gauge", "Memory in use on a GPU.",
        [(label, float(g.memory_used_bytes)) for label, g in zip(labels, cards, strict=True)
         if g.memory_used_bytes is not None],
    )  # fmt: skip
    for name, value in sorted(health.counters.items()):
        clean = re.sub(r"[^a-z0-9_]", "_", name.lower())
        yield from _metric(
            f"{clean}_total", "counter", f"{name.replace('_', ' ')} since the start.", [({}, value)]
        )


def _metric(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP gandiva_{name} {text}\n# TYPE gandiva_{name} {kind}\n"
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escape(word)}"' for key, word in labels.items())
        yield f"gandiva_{name}{'{' + inside + '}' if inside else ''} {value:.17g}\n"


def _escape(word: str) -> str:
    return word.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
