# SPDX-License-Identifier: Apache-2.0
"""The errors of this project.

Every error that a user or operator may meet derives from :class:`NumaExtError` and states in one sentence what was
requested, where, and what is allowed. Code that can go on without the missing thing catches the narrow class; nothing
catches ``Exception`` except the outermost guard of a service loop, which counts and logs.

A class with arguments of its own hands all of them to ``super().__init__`` and makes its sentence in ``__str__``: an
error that crosses a process (the privileged helper, pickle) is made again there as ``type(error)(*error.args)``.
"""


class NumaExtError(Exception):
    """Base of all errors raised on purpose by nova-numa-ext."""


class InvalidValueError(NumaExtError):
    """A value given by a user or found in a file is outside what is allowed.

    :param where: the key, file or option that holds the value
    :param value: the value as it was given
    :param allowed: what would be accepted, as text
    """

    def __init__(self, where: str, value: object, allowed: str) -> None:
        super().__init__(where, value, allowed)
        self.where = where
        self.value = value
        self.allowed = allowed

    def __str__(self) -> str:
        return f"{self.where}: {self.value!r} is not allowed; allowed: {self.allowed}"


class CapabilityMissingError(NumaExtError):
    """The host or service lacks something that the requested action needs."""


class ConflictError(NumaExtError):
    """Another client changed the same object at the same time and retries did not help."""


class ServiceUnavailableError(NumaExtError):
    """A service that we depend on (Placement, libvirt, a guest channel) does not answer now."""
