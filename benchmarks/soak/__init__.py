# SPDX-License-Identifier: GPL-2.0-or-later
"""The product at the size of a real site: `make soak`."""
