# SPDX-License-Identifier: GPL-2.0-or-later
"""Which weight of a job counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from controller.model.job import Request
from controller.model.value import empty, value

MAX_WEIGHT = 100.0
"""Largest weight that the flag takes."""


@value
class WeightLimits:
    """The largest weights that count. As with Slurm's own limits the QOS comes first: a job has the limit of
    its QOS, else that of its account, else the site's."""

    site: float = MAX_WEIGHT
    by_account: Mapping[str, float] = field(default_factory=empty)
    by_qos: Mapping[str, float] = field(default_factory=empty)
    """Names in lower case, as Slurm keeps them."""

    def apply(self, request: Request, account: str, qos: str) -> Request:
        """The request with a weight that is within the limit of a job of this account and QOS."""
        if (limit := self.by_qos.get(qos.lower())) is not None:
            whose = f"qos {qos}"
        elif (limit := self.by_account.get(account.lower())) is not None:
            whose = f"account {account}"
        else:
            limit, whose = self.site, "site"
        if request.weight <= limit:
            return request
        return replace(request, weight=limit, weight_asked=request.weight, weight_limit=whose)
