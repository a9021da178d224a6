# SPDX-License-Identifier: GPL-2.0-or-later
"""What rounds remember beyond jobs and their fractions."""

from dataclasses import dataclass

from pydantic import FiniteFloat


@dataclass
class RoundMemory:
    """JSON by the names of its fields. Digests say what something was for."""

    due: FiniteFloat | None = None
    """When the next round begins. None: there is no job."""
    reset_at: FiniteFloat | None = None
    """When the time that jobs received was counted anew last."""
    solved: str = ""
    """Digest of the jobs and GPUs of the last allocation."""
    asked: str = ""
    """The same of the one under way. Empty: none is."""
    problem: str = ""
    """Identity of the problem that was stated last."""
    asked_at: FiniteFloat = 0.0
    retry_at: FiniteFloat = 0.0
    error: str = ""
    """Why the last try came to nothing."""
    refused: bool = False
    """Not because the solver failed: that is known without this."""
    paired: tuple[str, str] = ("", "")
    """Digests: of the jobs and GPUs when pairs were looked for, and of the pairs."""
