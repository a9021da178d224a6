# SPDX-License-Identifier: GPL-2.0-or-later
"""What people read: tables like sacct's, explanations, the live view."""
