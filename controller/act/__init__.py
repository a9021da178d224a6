# SPDX-License-Identifier: GPL-2.0-or-later
"""From a plan to what is done: the difference to what is observed, as operations with deadlines."""
