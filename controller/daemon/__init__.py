# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva daemon`: one controller with its signals, its API and its lease."""
