# SPDX-License-Identifier: GPL-2.0-or-later
"""What is installed on this host: for which Slurm the SPANK plugin was built, and on what kind of file system
a folder is. Standard library only; answers with nothing where nothing can be found."""

import re
import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
PLUGIN = "spank_gandiva.so"
MAX_PLUGIN_BYTES = 16 << 20
MAX_KEYS_BYTES = 1 << 20
AGENT = "gandiva-agent"
_QUOTED = r'"(?:\\.|[^"\\])*"'
_KEY_OPTIONS = re.compile(rf'(?:[^\s"#]|{_QUOTED})+')
"""The first word of a line of authorized_keys; blanks within quotes belong to it."""
PLUGIN_PATTERNS = (
    "lib/*/slurm-wlm", "lib/*/slurm", "lib64/slurm", "lib/slurm",
    "local/lib/slurm", "local/lib64/slurm", "local/lib/*/slurm",
)  # fmt: skip
"""Below /usr: where Debian, RHEL and a build by hand have Slurm's plugins."""


def find_plugin(folders: tuple[Path, ...]) -> Path | None:
    """The SPANK plugin in one of these folders, or in those where Slurm usually has its plugins."""
    usual = (sorted(Path("/usr").glob(f"{pattern}/{PLUGIN}")) for pattern in PLUGIN_PATTERNS)
    return next(filter(Path.is_file, chain((folder / PLUGIN for folder in folders), *usual)), None)


def keys_from_anywhere(authorized_keys: Path) -> int:
    """How many lines force the agent for a key that sshd takes from any address (no `from=`). Raises
    OSError."""
    with authorized_keys.open("rb") as file:
        text = file.read(MAX_KEYS_BYTES).decode("utf-8", "replace")
    ours = (match[0] for match in map(_KEY_OPTIONS.match, text.splitlines()) if match and AGENT in match[0])
    # Within quotes, `from=` is a part of the command.
    return sum(re.search("(^|,)from=", re.sub(_QUOTED, '""', options)) is None for options in ours)


def built_for(plugin: Path) -> str:
    """The Slurm release that a SPANK plugin was built for, such as `26.05.5`.

    From its symbol `plugin_version`, which Slurm itself compares; reading it needs no loading. Raises
    OSError, or ValueError where it is no such plugin.
    """
    with plugin.open("rb") as file:
        data = file.read(MAX_PLUGIN_BYTES)
    try:
        number = _number(data, b"plugin_version")
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"{plugin} is no shared library") from error
    if number is None:
        raise ValueError(f"{plugin} has no plugin_version: it is no SPANK plugin")
    # 0x1a0505: year, month, patch level (SLURM_VERSION_NUM in slurm.h).
    return f"{number >> 16 & 0xFF:02d}.{number >> 8 & 0xFF:02d}.{number & 0xFF}"


def plugin_built_for(folders: tuple[Path, ...] = ()) -> str:
    """The Slurm release of this host's SPANK plugin, `none` where there is no plugin, or what is wrong."""
    plugin = find_plugin(folders)
    try:
        return "none" if plugin is None else built_for(plugin)
    except (OSError, ValueError) as error:
        return str(error)


def _number(data: bytes, name: bytes) -> int | None:  # of an exported 32-bit constant
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    # Of each section: type, address, offset, size, linked section.
    sections = [struct.unpack_from("<4xI8xQQQI", data, sections_at + size * i) for i in range(count)]
    for _, _, offset, length, link in (each for each in sections if each[0] == 11):  # SHT_DYNSYM
        for at in range(offset, offset + length, 24):
            name_at, section, value = struct.unpack_from("<I2xHQ", data, at)
            start = sections[link][2] + name_at
            if data[start : start + len(name) + 1] == name + b"\0" and 0 < section < count:
                _, address, where, _, _ = sections[section]
                return int(struct.unpack_from("<I", data, where + value - address)[0])
    return None


def mounts(table: Path = MOUNTS) -> Iterator[tuple[int, str, str]]:
    """Number, mount point and type of each file system that is mounted; of two on one point the later one is
    on top. From the kernel's list: opens nothing else. Raises OSError."""
    # Not splitlines(): a user's mount point may contain other characters that end a line.
    for line in table.read_text(encoding="utf-8", errors="surrogateescape").rstrip("\n").split("\n"):
        before, _, after = line.partition(" - ")
        number, _, _, _, point, *_ = before.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), point)
        yield int(number), point, after.split(" ")[0]


def filesystem_of(path: Path, table: Path = MOUNTS) -> str:
    """The type of the file system that a path is on (`tmpfs`, `ext4`, `nfs4`, …); empty: cannot be told."""
    try:
        kinds = {Path(point): kind for _, point, kind in mounts(table)}
        target = path.resolve()
        return next((kinds[point] for point in (target, *target.parents) if point in kinds), "")
    except (OSError, ValueError, RuntimeError):
        return ""
