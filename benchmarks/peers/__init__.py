# SPDX-License-Identifier: GPL-2.0-or-later
"""Other people's simulators, run beside ours. Nothing of them is here: each needs a clone."""
