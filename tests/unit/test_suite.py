# SPDX-License-Identifier: GPL-2.0-or-later
"""What holds for the tests themselves."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings


def test_no_property_depends_on_the_speed_of_the_machine(request: pytest.FixtureRequest) -> None:
    tests = [item.obj for item in request.session.items if isinstance(item, pytest.Function)]
    used = [each._hypothesis_internal_use_settings for each in tests if is_hypothesis_test(each)]
    for each in (settings(), *used):
        assert each.deadline is None and HealthCheck.too_slow in each.suppress_health_check
