# SPDX-License-Identifier: GPL-2.0-or-later
"""One HTML file without external resources, which runs its own script only.

Text from users, such as job names, reaches the page as JSON in which `<` cannot occur; the script shows it as
text only, and the page's content security policy allows the one script whose digest it names."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files

from controller.reports.html.data import Contents, page_data


def render(contents: Contents) -> str:
    """The page as text."""
    parts = {name: _part(name) for name in ("page.html", "page.css", "page.js")}
    data = json.dumps(page_data(contents), separators=(",", ":"), ensure_ascii=True)
    # Text from users comes last, so that nothing in it is taken for a placeholder.
    page = parts["page.html"]
    page = page.replace(
        "@POLICY@", f"script-src {_digest(parts['page.js'])}; style-src {_digest(parts['page.css'])}"
    )
    page = page.replace("@STYLE@", parts["page.css"]).replace("@SCRIPT@", parts["page.js"])
    return page.replace("@DATA@", data.replace("<", "\\u003c"))


def _part(name: str) -> str:
    return (files(__package__) / name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
