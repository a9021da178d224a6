# SPDX-License-Identifier: GPL-2.0-or-later
"""What holds for the tests themselves."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def test_no_property_depends_on_the_speed_of_the_machine() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check
