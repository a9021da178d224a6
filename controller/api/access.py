# SPDX-License-Identifier: GPL-2.0-or-later
"""Which callers see jobs: all, or with `api.private_data` those that send the token."""

import hmac
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from controller.errors import SettingsError

ENVIRONMENT = "GANDIVA_API_TOKEN_FILE"
"""Names a file with the token for the commands, instead of `api.token_file`."""
MAX_TOKEN_CHARS = 256
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,256}")
SCHEME = "Bearer "
"""Of the header Authorization, before the token."""


class WrongToken(Exception):
    """A caller sent another token."""


@dataclass(frozen=True, slots=True)
class Access:
    """What callers must have to see jobs. Without a token all callers see all."""

    token: str | None = field(default=None, repr=False)

    def sees_jobs(self, authorization: str) -> bool:
        """By a request's header of that name, empty without one. Raises WrongToken."""
        if self.token is None:
            return True
        if not authorization:
            return False
        given = authorization.removeprefix(SCHEME).strip()
        if hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
            return True
        raise WrongToken


OPEN = Access()
"""All callers see jobs."""


def read_token(path: Path) -> str:
    """The token in a file that others can neither read nor change. Raises SettingsError."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(MAX_TOKEN_CHARS + 2) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise SettingsError(f"cannot read the token file {path}: {error.strerror}") from error
    if status.st_mode & 0o027 or status.st_uid not in (0, os.geteuid()):
        raise SettingsError(
            f"{path}: others may read or change the token (mode {stat.S_IMODE(status.st_mode):04o}, owner "
            f"{status.st_uid}): chown it to root or to its user, and chmod 0640 or 0600"
        )
    token = text.decode("ascii", "replace").strip()
    if _TOKEN.fullmatch(token) is None:
        raise SettingsError(
            f"{path}: expected one line of 16 to {MAX_TOKEN_CHARS} characters A-Z a-z 0-9 . _ ~ + / = -: "
            "openssl rand -hex 32"
        )
    return token


def client_token(configured: Path | None) -> str | None:
    """The token of a command: of the file that the environment names, else of the one in the settings if its
    user may read it. None: there is none. Raises SettingsError."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return read_token(Path(named))
    if configured is None or not os.access(configured, os.R_OK):
        return None
    return read_token(configured)
