# SPDX-License-Identifier: Apache-2.0
"""One thing done to many hosts in Placement, several at a time."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from placement_traits.client import PlacementClient
from placement_traits.errors import NumaExtError

# At once: a fleet is done in a minute, and Placement serves others meanwhile.
_AT_ONCE: Final = 8

Host = TypeVar("Host")
Result = TypeVar("Result")


def each(
    make_client: Callable[[], PlacementClient],
    hosts: Sequence[Host],
    one: Callable[[PlacementClient, Host], Result],
) -> Iterator[tuple[Host, Result | str]]:
    """Do it; yield each host, in order, with the result or the sentence of what went wrong.

    :param make_client: a client counts its requests, so each host has its own
    """

    def done(host: Host) -> Result | str:
        try:
            return one(make_client(), host)
        except NumaExtError as error:
            return str(error)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        yield from zip(hosts, threads.map(done, hosts), strict=True)
