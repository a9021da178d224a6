# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva check`: examines an installation and says what to change.

`gather` collects the facts in parallel, each with a deadline; the other modules judge them, from facts to
findings. Nothing here changes anything.
"""
