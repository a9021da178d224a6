# SPDX-License-Identifier: GPL-2.0-or-later
"""The settings of the controller and of its clients: one schema, read from TOML.

The schema gives validation, the sample file, the reference page and `gandiva config show`.
"""
