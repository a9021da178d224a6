# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva check`: examines an installation and says what to change.

Two kinds of modules: those that judge (facts in, findings out), and `gather`, which gets the facts, each with
a deadline of its own and all at once. Nothing here changes anything.
"""
