# SPDX-License-Identifier: Apache-2.0
"""One request to a service of the cloud: what is silence, and what is an answer."""

from typing import Any

from keystoneauth1 import exceptions as keystone_errors

from placement_traits.client import HttpAdapter
from placement_traits.errors import LONGEST_TEXT, ServiceUnavailableError, cut


class SilentError(ServiceUnavailableError):
    """A service does not answer, or answers what it never does.

    :param service: its name, for users
    :param words: what happened, for operators: may name hosts
    """

    def __init__(self, service: str, words: str) -> None:
        super().__init__(service, words)
        self.service = service
        self.words = words

    def __str__(self) -> str:
        return f"{self.service} does not answer: {cut(self.words, LONGEST_TEXT)}"


class AbsentError(SilentError):
    """The catalogue has no endpoint of a service."""


def answered(
    adapter: HttpAdapter, service: str, method: str, path: str, body: dict[str, Any] | None = None
) -> Any:
    """Return the answer to a request, whatever its status.

    :param service: name of who is asked
    :raises AbsentError: there is no such service
    :raises SilentError: there is none
    """
    try:
        return adapter.request(path, method, json=body, raise_exc=False)
    except keystone_errors.EndpointNotFound as error:
        raise AbsentError(service, f"{method} {path}: {error}") from error
    except keystone_errors.ClientException as error:
        raise SilentError(service, f"{method} {path}: {error}") from error


def strange(answer: Any, service: str, request: str) -> SilentError:
    """Return the error for an answer that a request never has."""
    return SilentError(service, f"{answer.status_code} to {request}: {cut(answer.text)}")
