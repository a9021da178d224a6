# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva daemon`: one controller, put together from the settings, with its signals, its API and its lease."""
