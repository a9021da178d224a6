# SPDX-License-Identifier: GPL-2.0-or-later
"""Debian packages of this project, built in a container of the wanted release, into build/deb/<release>/.

What they are made of is hashed: a second call with the same sources does nothing.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from container import engine, images
from container.errors import CommandError, DeadlineError, ImageError
from container.execute import Content, execute, put_files
from container.spec import Role

RELEASES: Final = ("forky", "trixie")
"""Debian releases with a Slurm that this project supports: 26.05 and 24.11."""

PACKAGES_OF: Final[Mapping[Role, tuple[str, ...]]] = {
    "login": ("gandiva-common", "gandiva-client", "gandiva-slurm-plugin"),
    "ctl": (
        "gandiva-common",
        "gandiva-client",
        "gandiva-controller",
        "gandiva-pyslurm",
        "gandiva-slurm-plugin",
    ),
    "db": (),
    "node": ("gandiva-common", "gandiva-node", "gandiva-slurm-plugin"),
}
"""What is installed on each kind of host; gandiva-pyslurm where it was built."""

_SOURCES: Final = (
    "controller",
    "checkpointing",
    "gandiva",
    "slurm_plugin",
    "examples",
    "configs",
    "scripts/completion.py",
    "debian",
    "docs",
    "LICENSES",
    "README.md",
    "CHANGELOG.md",
    "pyproject.toml",
)
_SKIPPED: Final = "docs/images"
_FOLDER_IN_CONTAINER: Final = "/build/gandiva-slurm"
_SECONDS: Final = 900
_STAMP: Final = ".made-from"
_OUTPUT: Final = images.REPOSITORY_ROOT / "build" / "deb"


class Packages:
    """The packages of one Debian release."""

    def __init__(
        self,
        client: Any,
        release: str,
        report: Callable[[str], None] = lambda _: None,
        source: Path = images.REPOSITORY_ROOT,
    ) -> None:
        self._client = client
        self._release = release
        self._report = report
        self._source = source

    @property
    def folder(self) -> Path:
        """Where the packages are put."""
        return _OUTPUT / self._release

    def ensure(self, *, again: bool = False) -> Path:
        """Build what is missing or out of date; `again`: build in any case. Returns the folder.

        Raises:
            ImageError: the build failed, or lintian found an error; the message has the tail of its output.
        """
        image = images.Images(self._client, self._release, self._report, self._source).ensure_deb()
        files = package_sources(self._source)
        script = images.script("build-deb.sh")
        with engine.exclusive(f"packages-{self._release}"):
            wanted = images.digest(image, {**files, "build-deb.sh": script})
            stamp = self.folder / _STAMP
            if not again and stamp.is_file() and stamp.read_text() == wanted:
                self._report(f"packages for {self._release} are up to date: {self.folder}")
                return self.folder
            self._report(f"building packages for {self._release} (half a minute)")
            self._build(image, files, script)
            stamp.write_text(wanted)
        return self.folder

    def _build(self, image: str, files: Mapping[str, Content], script: Content) -> None:
        began = time.monotonic()
        container = self._client.containers.create(
            image, ["sleep", "infinity"], labels={images.LABEL: "packages"}, hostname="build"
        )
        output: list[str] = []
        log = images.LOGS / f"packages-{self._release}.log"
        try:
            container.start()
            inside = {f"{_FOLDER_IN_CONTAINER}/{name}": content for name, content in files.items()}
            put_files(self._client, container.id, {**inside, "/build/build-deb.sh": script})
            execute(
                self._client,
                container.id,
                ["bash", "-c", "bash /build/build-deb.sh 2>&1"],
                host=f"packages for {self._release}",
                timeout_seconds=_SECONDS,
                on_output=output.append,
            )
            archive = b"".join(container.get_archive("/build/out")[0])
        except (CommandError, DeadlineError) as error:
            raise ImageError(
                f"packages for {self._release} failed (log: {log}): {''.join(output)[-4000:] or error}"
            ) from error
        finally:
            container.remove(force=True)
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("".join(output))
        self._unpack(archive)
        self._report(f"packages for {self._release} built in {time.monotonic() - began:.0f} s: {self.folder}")

    def _unpack(self, archive: bytes) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                content = tar.extractfile(member)
                if content is not None:
                    (self.folder / Path(member.name).name).write_bytes(content.read())


def of_role(folder: Path, role: Role) -> dict[str, Path]:
    """The package files for one kind of host, by package name."""
    found = {path.name.partition("_")[0]: path for path in sorted(folder.glob("*.deb"))}
    return {name: found[name] for name in PACKAGES_OF[role] if name in found}


def package_sources(root: Path) -> dict[str, Content]:
    """What of this repository goes into the source package, by path relative to its root."""
    files = images.source_files(root, _SOURCES)
    return {name: content for name, content in files.items() if not name.startswith(_SKIPPED)}
