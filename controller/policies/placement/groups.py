# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a gang may be, whatever runs there now. Slurm's GRES are asked for per node, and name the GPU model:
a gang has the same GPUs on each of its nodes, all of one model."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from operator import attrgetter

from controller.model import Job, Node, Reason, Why
from controller.policies.placement.refusal import refusal

_CARD = attrgetter("id", "model", "shards", "usable")


def same_offer(one: Node, other: Node, *also: str) -> bool:
    """Whether a node offers jobs the same GPUs in both. `also`: fields that count, too."""
    same = all(getattr(one, name) == getattr(other, name) for name in ("available", *also))
    return same and [*map(_CARD, one.gpus)] == [*map(_CARD, other.gpus)]


class Spreads:
    """Over how many of the cluster's nodes gangs may be spread, whatever runs there."""

    def __init__(self, nodes: Iterable[tuple[str, int]]) -> None:
        """`nodes`: GPU model of each, and how many."""
        self._sizes: dict[str, list[int]] = {}
        for model, gpus in sorted(nodes):
            self._sizes.setdefault(model, []).append(gpus)
        self._known: dict[tuple[int, int | None, tuple[str, ...]], list[int]] = {}

    def counts(self, gpus: int, nodes: int | None, gpu_types: tuple[str, ...]) -> list[int]:
        """Fewest first. Empty: so many GPUs, on so many nodes (None: on any number), can never run here.
        `gpu_types`: that it may use; none named: all."""
        known = self._known.get((gpus, nodes, gpu_types))
        if known is None:
            sizes = [s for model, s in self._sizes.items() if not gpu_types or model in gpu_types]
            most = min(gpus, max(map(len, sizes), default=0))
            known = self._known[gpus, nodes, gpu_types] = [
                count
                for count in ((nodes,) if nodes else range(1, most + 1))
                if gpus % count == 0 and any(len(s) - bisect_left(s, gpus // count) >= count for s in sizes)
            ]
        return known

    def of(self, job: Job, model: str = "") -> list[int]:
        """The same for a job. `model`: of the GPUs that count; empty: all."""
        types = job.request.gpu_types
        if model and types and model not in types:
            return []
        return self.counts(job.gpus, job.request.nodes, (model,) if model else types)

    def least_share(self, job: Job, model: str = "") -> int:
        """The fewest of its GPUs that it can have on each node."""
        counts = self.of(job, model)
        return max(1, job.gpus // (counts[-1] if counts else job.request.nodes or job.gpus))

    def why_nowhere(self, job: Job, nodes: Iterable[tuple[Node, int, int | None]]) -> Why | None:
        """One sentence for a job that none of these nodes can take; None where one can. `nodes`: each with
        how many of its GPUs jobs may use, and its free host memory; None: not looked at. They are only looked
        at up to the first that can take a part of the job."""
        share, words = self.least_share(job), set[str]()
        for node, usable, memory_free_bytes in nodes:
            why = refusal(job, node, usable, share, memory_free_bytes)
            if why is None:
                never = self.why_not(job.gpus, job.request.nodes, job.request.gpu_types)
                return Why(Reason.NO_NODE_FITS, never) if never else None
            words.add(why)
        part = "its" if share == job.gpus else f"{share} of its"
        gpus = "GPU" if job.gpus == 1 else f"{job.gpus} GPUs"
        why = "; ".join(sorted(words)[:3])
        return Why(Reason.NO_NODE_FITS, f"no node can take {part} {gpus}: {why}")

    def why_not(self, gpus: int, nodes: int | None, gpu_types: tuple[str, ...]) -> str:
        """One sentence for what can never run here; empty where it can."""
        if self.counts(gpus, nodes, gpu_types):
            return ""
        asked = f"{gpus} {'GPU' if gpus == 1 else 'GPUs'}" + (
            f" on {nodes} nodes" if (nodes or 1) > 1 else ""
        )
        have = "; ".join(
            f"{model} has "
            + " and ".join(f"{number} x {size}" for size, number in sorted(Counter(sizes).items())[:-4:-1])
            for model, sizes in list(self._sizes.items())[:4]
            if not gpu_types or model in gpu_types
        )
        return f"{asked}, in equal parts on nodes of one GPU model, fit nowhere: {have or 'no such GPUs'}"
