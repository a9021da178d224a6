# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva run`: the controller as a user's own process, on a workstation or in an allocation."""
