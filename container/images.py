# SPDX-License-Identifier: GPL-2.0-or-later
"""The image of the mini cluster, in layers, each named by a hash of what it was made from.

    os        a bare Debian: pulled, else made by debootstrap where no registry is reached
    base      Slurm, MariaDB, munge, sshd, Python with pyslurm              minutes, seldom
    project   this repository, built and installed                          seconds, at each change
    deb       base, and what Debian packages are built and checked with     minutes, seldom
    site      base without any of Gandiva: packages are installed into it   a minute, seldom
    torch     base and Debian's PyTorch: the job side is tested in it       two minutes, seldom
    torch-project   as project, on torch

Layers are made by running a script in a container and committing it. That works with any engine, needs no
registry and no build plugin, and has a deadline.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import docker.errors

from container import engine, host_settings
from container.errors import CommandError, DeadlineError, ImageError
from container.execute import Content, execute, put_files

LABEL: Final = "org.gandiva.minicluster.image"
"""On every image and build container; its value is the layer."""
LABEL_OF_CLUSTERS: Final = "org.gandiva.minicluster"
"""On everything of a running cluster; its value is the cluster's name."""
REPOSITORY: Final = "gandiva-minicluster"
REPOSITORY_ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE_IN_IMAGE: Final = "/opt/gandiva/src"
SCRIPTS_IN_IMAGE: Final = "/usr/lib/gandiva-minicluster"

LOGS: Final = REPOSITORY_ROOT / "build" / "logs"
_HERE: Final = Path(__file__).resolve().parent
_SCRIPTS: Final = ("boot.sh", "service.sh", "prepare.sh", "project.sh")
_SITE_SCRIPTS: Final = ("boot.sh", "service.sh", "prepare.sh")
_SOURCES: Final = (
    "controller",
    "checkpointing",
    "gandiva",
    "slurm_plugin",
    "container/__init__.py",
    "container/mock_gpu",
    "examples",
    "configs",
    "pyproject.toml",
    "README.md",
)
_SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "build", ".mypy_cache", ".pytest_cache", "node_modules"})
_SKIPPED_SUFFIXES: Final = frozenset({".pyc", ".o", ".so", ".egg-info"})
_CA_PATH: Final = "/build/ca.crt"

_KEPT_IMAGES: Final = 4
_PULL_SECONDS: Final = 120
_DEBOOTSTRAP_SECONDS: Final = 900
_BASE_SECONDS: Final = 1800
_PROJECT_SECONDS: Final = 300
_DEB_SECONDS: Final = 1200
_SITE_SECONDS: Final = 600
_TORCH_SECONDS: Final = 1800

Report = Callable[[str], None]


class Images:
    """Makes the images of one Debian release, and knows which ones are up to date."""

    def __init__(
        self,
        client: Any,
        release: str = "forky",
        report: Report = lambda _: None,
        source: Path = REPOSITORY_ROOT,
    ) -> None:
        self._client = client
        self._source = source
        self._release = release
        self._report = report

    def ensure(self, *, torch: bool = False) -> str:
        """Name of the image of the sources as they are now; made where it is missing.

        Args:
            torch: with Debian's PyTorch.

        Raises:
            ImageError: a step failed; the message has the tail of its output.
        """
        layer = "torch-project" if torch else "project"
        repository = f"{REPOSITORY}-{layer}" if torch else REPOSITORY
        torch_image = self.ensure_torch() if torch else None
        with engine.exclusive("build"):
            sources = source_files(self._source)
            base = torch_image or self._ensure_base()
            scripts = {f"{SCRIPTS_IN_IMAGE}/{name}": script(name) for name in _SCRIPTS}
            content = {f"{SOURCE_IN_IMAGE}/{name}": file for name, file in sources.items()} | scripts
            tag = f"{repository}:{self._release}-{digest(base, content)}"
            if self._exists(tag):
                return tag
            self._report("installing the project into the image")
            self._run_step(
                base,
                tag,
                layer,
                content,
                f"bash {SCRIPTS_IN_IMAGE}/project.sh",
                _PROJECT_SECONDS,
            )
            self._remove_outdated(layer)
            return tag

    def ensure_deb(self) -> str:
        """Name of the image that packages are built in. Raises ImageError as :meth:`ensure`."""
        inputs = {
            "/build/deb.sh": script("deb.sh"),
            "/build/constraints.txt": Content((_HERE / "constraints.txt").read_bytes()),
        }
        message = "installing debhelper and its company into an image (once, a minute or two)"
        return self._ensure_on_base("deb", inputs, _DEB_SECONDS, message)

    def ensure_site(self) -> str:
        """Name of the image of hosts that packages are installed on. Raises ImageError as :meth:`ensure`."""
        inputs = {"/build/site.sh": script("site.sh")}
        inputs |= {f"{SCRIPTS_IN_IMAGE}/{name}": script(name) for name in _SITE_SCRIPTS}
        mock_gpu = _HERE / "mock_gpu"
        for path in _walk(mock_gpu):
            inputs[f"/build/mock_gpu/{path.relative_to(mock_gpu).as_posix()}"] = _content(path)
        message = "making the image of hosts that packages are installed on (once)"
        return self._ensure_on_base("site", inputs, _SITE_SECONDS, message)

    def ensure_torch(self) -> str:
        """Name of the image that the job side is tested in. Raises ImageError as :meth:`ensure`."""
        inputs = {"/build/torch.sh": script("torch.sh")}
        message = "installing Debian's PyTorch into an image (once, 220 MB, two minutes)"
        return self._ensure_on_base("torch", inputs, _TORCH_SECONDS, message)

    def _ensure_on_base(self, layer: str, inputs: Mapping[str, Content], seconds: float, message: str) -> str:
        with engine.exclusive("build"):
            base = self._ensure_base()
        # A lock of its own: a cluster without them does not wait for these.
        with engine.exclusive(f"build-{layer}"):
            return self._ensure_layer(layer, base, inputs, seconds, message)

    def _ensure_base(self) -> str:
        inputs = {
            "/build/base.sh": script("base.sh"),
            "/build/database.sh": script("database.sh"),
            "/build/constraints.txt": Content((_HERE / "constraints.txt").read_bytes()),
        }
        message = "installing Slurm and its company into the base image (once, a few minutes)"
        return self._ensure_layer("base", None, inputs, _BASE_SECONDS, message)

    def _ensure_layer(
        self, layer: str, parent: str | None, inputs: Mapping[str, Content], seconds: float, message: str
    ) -> str:
        """A layer that the script of its name makes, with the mirrors in reach. No parent: a bare system."""
        tag = f"{REPOSITORY}-{layer}:{self._release}-{digest(parent or self._release, inputs)}"
        if self._exists(tag):
            return tag
        parent = parent or self._ensure_system()
        files = dict(inputs)
        authorities = host_settings.ca_bundle()
        if authorities is not None:
            files[_CA_PATH] = Content(authorities)
        self._report(message)
        environment = host_settings.build_environment(_CA_PATH if authorities else None)
        self._run_step(parent, tag, layer, files, f"bash /build/{layer}.sh", seconds, environment)
        self._remove_outdated(layer)
        return tag

    def _ensure_system(self) -> str:
        tag = f"{REPOSITORY}-os:{self._release}"
        if not self._exists(tag) and not self._pull(tag):
            self._debootstrap(tag)
        return tag

    def _pull(self, tag: str) -> bool:
        name = f"debian:{self._release}-slim"
        self._report(f"pulling {name}")
        known = self._exists(name)
        api = self._client.api
        timeout, api.timeout = api.timeout, _PULL_SECONDS
        try:
            image = self._client.images.pull("debian", tag=f"{self._release}-slim")
            tagged = bool(image.tag(*tag.split(":")))
            if not known:
                try_remove(self._client, name)  # Only the name goes: ours keeps the image.
            return tagged
        except (docker.errors.APIError, OSError):
            return False  # No registry is reached from here (or the release has no image there yet).
        finally:
            api.timeout = timeout

    def _debootstrap(self, tag: str) -> None:
        """No registry: make the system from Debian's packages."""
        program = engine.ensure_tool("debootstrap", "debootstrap", self._report)
        self._report(f"no registry is reached: making {self._release} with debootstrap")
        with tempfile.TemporaryDirectory(prefix="gandiva-debootstrap-") as folder:
            root = Path(folder, "root")
            command = [program, "--variant=minbase", "--include=ca-certificates", self._release, str(root)]
            mirror = host_settings.debian_mirror()
            if mirror is not None:
                # One script serves all releases of the last years, also those newer than debootstrap.
                command += [mirror, "/usr/share/debootstrap/scripts/sid"]
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=_DEBOOTSTRAP_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise ImageError(f"debootstrap: no end after {_DEBOOTSTRAP_SECONDS} s") from error
            if done.returncode != 0:
                raise ImageError(f"debootstrap failed: {(done.stderr or done.stdout)[-2000:]}")
            archive = Path(folder, "root.tar")
            # tar, not tarfile: it knows devices, owners and hard links, and is quick.
            subprocess.run(
                ["tar", "-C", root, "--exclude=./dev/*", "--exclude=./var/cache/apt/*.bin",
                 "--exclude=./var/cache/apt/archives/*.deb", "-cf", archive, "."],
                check=True, timeout=_DEBOOTSTRAP_SECONDS,
            )  # fmt: skip
            name, _, version = tag.partition(":")
            api = self._client.api
            timeout, api.timeout = api.timeout, _DEBOOTSTRAP_SECONDS
            try:
                api.import_image_from_file(
                    str(archive), repository=name, tag=version, changes=[f"LABEL {LABEL}=os"]
                )
            finally:
                api.timeout = timeout

    def _run_step(
        self,
        parent: str,
        tag: str,
        layer: str,
        files: Mapping[str, Content],
        command: str,
        timeout_seconds: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Run a command in a container of `parent` and keep the result as the image `tag`."""
        began = time.monotonic()
        container = self._client.containers.create(
            parent, ["sleep", "infinity"], labels={LABEL: layer}, hostname="build"
        )
        output: list[str] = []
        try:
            container.start()
            put_files(self._client, container.id, files)
            execute(
                self._client,
                container.id,
                ["bash", "-c", f"{command} 2>&1"],
                host=f"image layer {layer}",
                timeout_seconds=timeout_seconds,
                env=environment,
                on_output=output.append,
            )
            execute(self._client, container.id, ["rm", "-rf", "/build"])
            name, _, version = tag.partition(":")
            container.commit(
                name, version, changes=[f"LABEL {LABEL}={layer}", 'CMD ["bash"]', "ENV LANG=C.UTF-8"]
            )
        except (CommandError, DeadlineError) as error:
            raise ImageError(f"image layer {layer} failed: {''.join(output)[-4000:] or error}") from error
        finally:
            container.remove(force=True)
            LOGS.mkdir(parents=True, exist_ok=True)
            (LOGS / f"image-{self._release}-{layer}.log").write_text("".join(output))
        self._report(f"image layer {layer} made in {time.monotonic() - began:.0f} s")

    def _exists(self, tag: str) -> bool:
        try:
            self._client.images.get(tag)
        except docker.errors.ImageNotFound:
            return False
        return True

    def _remove_outdated(self, layer: str) -> None:
        """Remove older images of this layer and release, but the last ones: someone may be about to use them.

        Those that containers use stay anyway.
        """
        names = {REPOSITORY, f"{REPOSITORY}-{layer}"}  # Others may have tagged our images as well.
        tags = [
            tag
            for image in sorted(
                self._client.images.list(filters={"label": f"{LABEL}={layer}"}),
                key=lambda image: str(image.attrs["Created"]),
                reverse=True,
            )
            for tag in image.tags
            if tag.partition(":")[0] in names and tag.partition(":")[2].startswith(f"{self._release}-")
        ]
        for tag in tags[_KEPT_IMAGES:]:
            try_remove(self._client, tag)


def remove_all(client: Any) -> int:
    """Remove every image this module made, and containers of builds that were cut off; the images' number."""
    for container in client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True):
        if LABEL_OF_CLUSTERS not in container.labels:
            container.remove(force=True)
    # By name, since a pulled image has no label of ours; others may have tagged our images, that is theirs.
    tags = [tag for image in client.images.list() for tag in image.tags]
    layers = ("base", "os", "deb", "site", "torch", "torch-project")
    names = {REPOSITORY, *(f"{REPOSITORY}-{layer}" for layer in layers)}
    ours = [tag for tag in tags if tag.partition(":")[0] in names]
    return sum(try_remove(client, tag) for tag in ours)


def try_remove(client: Any, tag: str) -> bool:
    """Remove an image unless something uses it."""
    try:
        client.images.remove(tag)
    except docker.errors.APIError:
        return False
    return True


def source_files(root: Path, names: Iterable[str] = _SOURCES) -> dict[str, Content]:
    """What of this repository goes into the image, by path relative to its root."""
    files = {}
    for name in names:
        for path in _walk(root / name):
            files[path.relative_to(root).as_posix()] = _content(path)
    return files


def _content(path: Path) -> Content:
    status = path.stat()
    mode = 0o755 if status.st_mode & 0o100 else 0o644
    return Content(path.read_bytes(), mode, mtime_seconds=int(status.st_mtime))


def _walk(path: Path) -> Iterator[Path]:
    if path.is_symlink() or path.suffix in _SKIPPED_SUFFIXES:
        return
    if path.is_dir():
        if path.name not in _SKIPPED_FOLDERS:
            for child in sorted(path.iterdir()):
                yield from _walk(child)
    elif path.is_file():
        yield path


def script(name: str) -> Content:
    """A file of container/image/."""
    return Content((_HERE / "image" / name).read_bytes(), 0o755)


def digest(parent: str, files: Mapping[str, Content]) -> str:
    """A short name of what something is made from."""
    digest = hashlib.sha256(parent.encode())
    for name in sorted(files):
        content = files[name]
        digest.update(f"\0{name}\0{content.mode:o}\0{len(content.data)}\0".encode())
        digest.update(content.data)
    return digest.hexdigest()[:16]
