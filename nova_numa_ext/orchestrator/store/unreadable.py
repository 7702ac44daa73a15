# SPDX-License-Identifier: Apache-2.0
"""What is stored in another form than this release's, as by a newer one beside it while the service is upgraded."""

from collections.abc import Callable

from placement_traits.errors import NumaExtError

Unreadable = Callable[[str, Exception], None]
"""Called with the uuid of what is left out, and why it cannot be read."""


class UnreadableError(NumaExtError):
    """Something is stored in another form than this release's.

    :param what: what it is, as the first word of a sentence
    :param uuid: its uuid
    :param project: whose it is
    :param why: what of it is not understood, for operators
    """

    def __init__(self, what: str, uuid: str, project: str, why: str) -> None:
        super().__init__(what, uuid, project, why)
        self.what, self.uuid, self.project, self.why = what, uuid, project, why

    def __str__(self) -> str:
        return f"{self.what} {self.uuid} is stored in a form that this release does not know: {self.why}"
