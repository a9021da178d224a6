# SPDX-License-Identifier: GPL-2.0-or-later
"""One HTML file without external resources, which runs its own script only.

Text from users, such as job names, reaches the page as JSON in which `<` cannot occur; the script shows it as
text only, and the page's content security policy allows the one script whose digest it names."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from importlib.resources import files
from pathlib import Path

from controller.errors import GandivaError
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


def write(contents: Contents, path: Path) -> int:
    """Write the page, all of it or nothing; returns its size in bytes. Raises GandivaError."""
    text = render(contents).encode("utf-8", "replace")
    try:
        if path.exists() and not path.is_file():
            # A pipe or /dev/stdout cannot be replaced.
            path.write_bytes(text)
            return len(text)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with draft.open("xb") as file:
                file.write(text)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise GandivaError(f"cannot write {path}: {error.strerror}") from error
    return len(text)


def _part(name: str) -> str:
    return (files(__package__) / name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
