# SPDX-License-Identifier: GPL-2.0-or-later
"""The node agent: what runs as root on a GPU node. Of the controller it imports only the protocol."""
