# SPDX-License-Identifier: GPL-2.0-or-later
"""Contract suites: one set of tests for all adapters of a port."""

import pytest

pytest.register_assert_rewrite("tests.contract.cluster_port_contract", "tests.contract.node_port_contract")
