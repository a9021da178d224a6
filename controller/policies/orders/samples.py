# SPDX-License-Identifier: GPL-2.0-or-later
"""The file of job sizes that `tiresias-gittins` may begin with. Read where policies are put together: the
policy itself does no I/O."""

import csv
from pathlib import Path

from controller.errors import SettingsError


def read_sizes(path: Path) -> list[float]:
    """GPU-seconds of finished jobs from a CSV file. Raises SettingsError naming line and column."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if "duration" not in (reader.fieldnames or ()):
                raise SettingsError(f"{path}: line 1: there is no column `duration`")
            sizes = []
            for row in reader:
                try:
                    size = float(row["duration"])
                except (TypeError, ValueError):
                    size = -1.0
                if not 0 < size < 1e15:
                    raise SettingsError(
                        f"{path}: line {reader.line_num}, column `duration`: {row['duration']!r} is not a "
                        "positive number of GPU-seconds"
                    )
                sizes.append(size)
    except OSError as error:
        raise SettingsError(f"cannot read the distribution {path}: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not a CSV file: {error}") from error
    if not sizes:
        raise SettingsError(f"{path}: no samples")
    return sizes
