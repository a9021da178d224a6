# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva report --html`: the module `page`, and the parts that setuptools installs beside it."""
