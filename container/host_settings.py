# SPDX-License-Identifier: GPL-2.0-or-later
"""How this host reaches its package mirrors, so that a container on it can do the same.

Nothing of it is written into the repository or stays in an image: it is read where this host has it (apt's
sources, `pip config`, the environment, the CA bundle) each time an image is built.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PROXIES: Final = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_CA_BUNDLES: Final = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_CA_FILES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
_DEBIAN: Final = re.compile(r"(https?://\S+/debian)/?(?=\s|$)")
_SECONDS: Final = 30


def debian_mirror() -> str | None:
    """The Debian mirror in this host's apt sources; None where it has none (another distribution)."""
    folder = Path("/etc/apt")
    files = [folder / "sources.list", *sorted(folder.glob("sources.list.d/*"))]
    for file in files:
        if file.suffix not in {".list", ".sources"} or not file.is_file():
            continue
        for line in file.read_text(errors="replace").splitlines():
            match = None if line.lstrip().startswith("#") else _DEBIAN.search(line)
            if match:
                return match[1]
    return None


def ca_bundle() -> bytes | None:
    """The certificates this host trusts; None where it has no bundle."""
    candidates = [os.environ[name] for name in _CA_BUNDLES if os.environ.get(name)]
    for path in (*candidates, *_CA_FILES):
        if Path(path).is_file():
            return Path(path).read_bytes()
    return None


def build_environment(ca_path: str | None) -> dict[str, str]:
    """Environment in which apt and pip inside a container work as they do on this host.

    Args:
        ca_path: where the container has this host's CA bundle; None: it keeps its own.
    """
    environment = {name: os.environ[name] for name in _PROXIES if os.environ.get(name)}
    environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    environment |= dict(_pip_indexes())
    options = list(_apt_options())
    if ca_path is not None:
        environment |= {"PIP_CERT": ca_path, "SSL_CERT_FILE": ca_path}
        options.append(f'Acquire::https::CaInfo "{ca_path}";')
    if options:
        environment["APT_OPTIONS"] = "\n".join(options)
    return environment


def _pip_indexes() -> Iterator[tuple[str, str]]:
    """The indexes pip uses here; local folders and file: addresses mean nothing inside a container."""
    listing = _output([sys.executable, "-m", "pip", "config", "list"])
    for line in listing.splitlines():
        match = re.fullmatch(r"(?:global|install|user|:env:)\.(index-url|extra-index-url)='(.*)'", line)
        if match is None:
            continue
        urls = [url for url in re.split(r"\s+|\\n", match[2]) if url.startswith(("http://", "https://"))]
        if urls:
            yield "PIP_" + match[1].upper().replace("-", "_"), " ".join(urls)


def _apt_options() -> Iterator[str]:
    if shutil.which("apt-config"):
        for line in _output(["apt-config", "dump"]).splitlines():
            if re.match(r'Acquire::https?::Proxy(::\S+)? "[^"]+";', line):
                yield line


def _output(command: list[str]) -> str:
    """What a command prints; nothing where it fails: these are hints, and the build tells what is missing."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
