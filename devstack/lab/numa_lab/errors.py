# SPDX-License-Identifier: Apache-2.0
"""The exceptions that the lab shows to people."""

from pathlib import Path


class LabError(Exception):
    """Something the lab could not do: one clear sentence and the log that tells more.

    :param message: what failed, where, and what is allowed or to be done.
    :param log: the log file whose last lines matter, if there is one.
    """

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log


class LateError(LabError):
    """Something did not happen within its time; it may yet, on a machine with much to do."""


class AskedWrongError(LabError):
    """What was typed names nothing there is: typing it again is no help."""
