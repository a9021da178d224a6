# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva report --html`: what the page shows (`data`), and the file (`page`).

The page's own parts, which setuptools installs beside this module: `page.html`, `page.css`, `page.js`.
"""
