# SPDX-License-Identifier: Apache-2.0
"""Requests that are answered with an error."""

from placement_traits.errors import NumaExtError


class RefusedRequestError(NumaExtError):
    """A request that is answered with an error.

    :param status: HTTP status
    :param sentence: the answer
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(status, sentence)
        self.status = status
        self.sentence = sentence


def forbidden(rule: str) -> RefusedRequestError:
    """Return the answer to who may not do what a rule of policy is for."""
    return RefusedRequestError(403, f"Policy does not allow {rule} to be performed.")
