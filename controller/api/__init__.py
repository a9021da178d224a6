# SPDX-License-Identifier: GPL-2.0-or-later
"""The read-only HTTP API: what the controller publishes, the server, and the client of the commands."""
