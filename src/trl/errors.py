"""Errors that are for people: what happened, why, and what to do about it.

A `TrlError` is a mistake that the user can mend. It is shown as its text alone; no entry point of this package
prints a traceback for it.
"""

from __future__ import annotations


class TrlError(Exception):
    """Something the user can mend.

    Args:
        what: one sentence: what went wrong, and where (file, row, rank, host).
        why: the numbers or the reason behind it; may be empty.
        fix: what to do; may be empty.
    """

    exit_code = 2

    def __init__(self, what: str, why: str = "", fix: str = ""):
        self.what, self.why, self.fix = what, why, fix
        super().__init__(what, why, fix)

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class ConfigError(TrlError, ValueError):
    """An argument, a configuration file or a combination of options that cannot be carried out."""


class BatchError(ConfigError):
    """The parts of the global batch contradict each other."""


class DataError(TrlError, ValueError):
    """A file or a row of the data cannot be used."""


class LaunchError(TrlError):
    """The processes of a job could not be started or did not come together."""


class ModelError(TrlError, ValueError):
    """A model cannot be loaded or cannot be trained as asked."""
