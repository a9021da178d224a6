# SPDX-License-Identifier: GPL-2.0-or-later
"""The Debian packaging agrees with the rest of the repository; the packages themselves are tested live."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from container import packages
from controller import __version__
from controller.slurm_config.description import parse
from controller.slurm_config.fragments import Options, render

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

ROOT = Path(__file__).resolve().parents[3]
DEBIAN = ROOT / "debian"


def paragraphs() -> dict[str, dict[str, str]]:
    """The binary packages of debian/control."""
    found = {}
    for text in (DEBIAN / "control").read_text().split("\n\n"):
        fields = {
            key: " ".join(value.split())
            for key, value in re.findall(r"^([\w-]+):((?:.*)(?:\n[ \t].*)*)", text, re.MULTILINE)
        }
        if "Package" in fields:
            found[fields["Package"]] = fields
    return found


def names(dependencies: str) -> set[str]:
    words = (part.strip().split(" ")[0].partition(":")[0] for part in dependencies.split(","))
    return {word for word in words if word and not word.startswith("$")}


def test_the_version_is_the_programs() -> None:
    match = re.match(r"gandiva-slurm \(([^)]+)\) ", (DEBIAN / "changelog").read_text())
    assert match is not None and match[1] == __version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__


def test_every_package_has_a_host() -> None:
    assert {name for role in packages.PACKAGES_OF.values() for name in role} == set(paragraphs())


@pytest.mark.parametrize("role", ["login", "ctl", "node"])
def test_a_host_gets_what_its_packages_depend_on(role: str) -> None:
    chosen = packages.PACKAGES_OF[role]  # type: ignore[index]
    needed = {n for p in chosen for n in names(paragraphs()[p]["Depends"]) if n.startswith("gandiva")}
    assert needed <= set(chosen)


def test_the_site_image_has_what_comes_from_debian() -> None:
    """dpkg installs there without a mirror."""
    script = (ROOT / "container/image/site.sh").read_text()
    installed = set(
        re.findall(r"[\w.+-]+", script[script.index("apt install") : script.index("rm -rf /var")])
    )
    needed = {n for fields in paragraphs().values() for n in names(fields["Depends"])}
    from_debian = {name for name in needed if not name.startswith("gandiva")}
    assert from_debian - {"python3", "mount"} <= installed, "these are there already"


def test_requirements_are_those_of_the_project() -> None:
    """What pip would demand at least, the packages demand too."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    everything = " ".join(fields.get("Depends", "") for fields in paragraphs().values())
    # Part of Python; brought along in gandiva-node; not in Debian.
    elsewhere = {"tomli", "nvidia-ml-py", "clarabel"}
    for requirement in (r for role in ("client", "sim", "agent", "controller") for r in extras[role]):
        if requirement.startswith("gandiva-slurm["):
            continue  # Those of another role.
        match = re.match(r"([\w-]+)>=([\d.]+)", requirement)
        assert match is not None, requirement
        if match[1] not in elsewhere:
            assert re.search(rf"python3-{match[1]} \(>= (1:)?{re.escape(match[2])}\)", everything), (
                requirement
            )


@pytest.mark.parametrize("page", sorted((ROOT / "docs/man").glob("*.[1-8]")), ids=lambda page: page.name)
def test_every_manual_page_is_in_one_package(page: Path) -> None:
    name = page.relative_to(ROOT).as_posix()
    holders = [
        listing.name
        for listing in DEBIAN.glob("*.manpages")
        if any(fnmatch(name, pattern) for pattern in listing.read_text().split())
    ]
    assert len(holders) == 1, f"{name}: name it in one of debian/*.manpages"


def test_staged_files_are_shared_out(tmp_path: Path) -> None:
    """All that debian/stage lays out goes into exactly one package, and each line there finds something.

    The plugin is not built here: a stand-in takes its place.
    """
    work = tmp_path / "work"
    for name in ("controller", "checkpointing", "gandiva", "configs", "scripts", "debian"):
        shutil.copytree(ROOT / name, work / name, ignore=shutil.ignore_patterns("__pycache__"))
    (work / "slurm_plugin").mkdir()
    (work / "slurm_plugin/Makefile").write_text(
        "install:\n\tinstall -D /dev/null $(DESTDIR)$(PLUGIN_DIR)/spank_gandiva.so\n"
        "\tinstall -D /dev/null $(DESTDIR)$(PREFIX)/sbin/gandiva-confine\n"
        + "".join(
            f"\tinstall -D /dev/null $(DESTDIR)$(SLURM_SYSCONFDIR)/{name}\n"
            for name in ("gandiva/gandiva.lua", "prolog.d/50-gandiva.sh", "epilog.d/50-gandiva.sh")
        )
    )
    for name in ("pynvml/pynvml.py", "pyslurm/pyslurm/__init__.py"):
        (work / "third_party" / name).parent.mkdir(parents=True, exist_ok=True)
        (work / "third_party" / name).touch()
    subprocess.run(
        ["debian/stage", "tmp", "x86_64-linux-gnu", "pyslurm"],
        cwd=work,
        check=True,
        timeout=120,
        # The interpreter of this environment: the stage runs the command to make its settings file.
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    stage = work / "tmp"
    staged = {
        (Path(folder) / name).relative_to(stage).as_posix()
        for folder, folders, files in os.walk(stage)
        for name in (*files, *(f for f in folders if (Path(folder) / f).is_symlink()))
    }
    patterns = {
        (listing.stem, pattern): {
            name for name in staged if fnmatch(name, pattern) or fnmatch(name, f"{pattern}/*")
        }
        for listing in DEBIAN.glob("*.install")
        for pattern in listing.read_text().split()
    }
    nothing = [place for place, found in patterns.items() if not found and not place[1].endswith("grafana")]
    assert nothing == []
    for name in staged:
        assert sum(name in found for found in patterns.values()) == 1, name
    assert not [name for name in staged if "__pycache__" in name]

    places = (stage / "usr/share/gandiva/controller/settings/places.py").read_text()
    assert 'JOBSIDE: Final[str] = "/usr/share/gandiva/jobside"' in places
    assert 'SLURM_FILES: Final[str | None] = "/usr/share/gandiva/slurm"' in places
    jobside = stage / "usr/share/gandiva/jobside"
    assert sorted(path.name for path in jobside.iterdir()) == ["checkpointing", "gandiva"]
    # As a job has it: this folder on its path, and nothing of the controller's.
    program = "import gandiva, checkpointing.store.state"
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(jobside)}
    subprocess.run([sys.executable, "-s", "-c", program], cwd="/", check=True, timeout=60, env=environ)


CLUSTER = """
[cluster]
name = "mini"
[[nodes]]
names = "n1"
cpus = 4
memory_mib = 1000
gpu_model = "a100"
gpus = 1
[[partitions]]
name = "gpu"
nodes = "n1"
"""


def test_packaged_scripts_are_called_from_slurms_folder(tmp_path: Path) -> None:
    files = render(parse(CLUSTER), Options(slurm_files=str(tmp_path)))
    assert f'dofile("{tmp_path}/gandiva/gandiva.lua")' in files["gandiva/job_submit.lua.example"]
    assert "Prolog=/etc/slurm/prolog.d/*" in files["gandiva/slurm.conf"]
    hook = files["prolog.d/50-gandiva.sh"]
    # Nothing there: the job must start all the same.
    subprocess.run(["sh", "-c", hook], check=True, timeout=60)
    script = tmp_path / "prolog.d/50-gandiva.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\nexit 7\n")
    script.chmod(0o755)
    assert subprocess.run(["sh", "-c", hook], check=False, timeout=60).returncode == 7
    assert "prolog.d/50-gandiva.sh" not in render(parse(CLUSTER))


def test_scripts_are_written_executable(tmp_path: Path) -> None:
    from controller.slurm_config.fragments import write

    write(render(parse(CLUSTER), Options(slurm_files="/usr/share/gandiva/slurm")), tmp_path)
    assert os.access(tmp_path / "epilog.d/50-gandiva.sh", os.X_OK)
    assert not os.access(tmp_path / "gres.conf", os.X_OK)


@pytest.mark.parametrize("script", sorted(DEBIAN.glob("*.p*[mt]*")), ids=lambda path: path.name)
def test_maintainer_scripts(script: Path) -> None:
    if script.suffix not in {".postinst", ".postrm", ".preinst", ".prerm"}:
        pytest.skip("not a maintainer script")
    text = script.read_text()
    assert text.startswith("#!/bin/sh\nset -e\n") and "\n#DEBHELPER#\n" in text
    subprocess.run(["sh", "-n", str(script)], check=True, timeout=60)
