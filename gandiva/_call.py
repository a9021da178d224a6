# SPDX-License-Identifier: MIT
"""A trial of `gandiva.executor`: `python -m gandiva._call FILE` calls the function that FILE has, and writes
what it returns, or raises, into FILE.result."""

import pickle
import sys
import traceback
from pathlib import Path
from typing import Any, Tuple


def main() -> int:
    file = Path(sys.argv[1])
    sys.path[:], call = pickle.loads(file.read_bytes())
    outcome: Tuple[bool, Any]
    try:
        function, args, kwargs = pickle.loads(call)
        outcome = True, function(*args, **kwargs)
    except Exception as error:
        traceback.print_exc()
        outcome = False, error
    new = file.with_suffix(".new")
    new.write_bytes(_pickled(*outcome))
    new.rename(file.with_suffix(".result"))
    return 0 if outcome[0] else 1


def _pickled(returned: bool, value: Any) -> bytes:
    try:
        raw = pickle.dumps((returned, value))
        pickle.loads(raw)  # an exception with arguments of its own may not come back
        return raw
    except Exception as error:
        what = "returned" if returned else "raised"
        return pickle.dumps(
            (False, RuntimeError(f"it has {what} {value!r}, which cannot be pickled: {error}"))
        )


if __name__ == "__main__":
    sys.exit(main())
