# SPDX-License-Identifier: Apache-2.0
"""What consumers of our own hold in Placement; nothing else writes their allocations.

Placement is the only arbiter of amounts: what must be had together, over any number of providers and consumers, is one
request that Placement grants as a whole or refuses::

    take      write(job)                  a new consumer, generation None
    release   write(emptied(job))         under the generation that was read
    move      write(job elsewhere, move)  a second consumer keeps the source until it is released, too

Every write carries each consumer's generation, so one that was sent twice, or late by a process that no longer leads,
changes nothing that another process has written since. A consumer that held nothing has no generation: before each try
who writes makes sure that it still may. A server's allocation, or any that is not of our types, is never written here.

Placement keeps the consumer of a new claim that it refuses as malformed, such as one of an unknown class: with nothing,
at generation 0. Each later write of it as new would be a conflict, so where a new claim conflicts and holds nothing,
such a consumer is deleted first.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlencode

from placement_traits.claims import Claim, emptied
from placement_traits.client import (
    GenerationConflictError,
    NotFoundError,
    PlacementClient,
    PlacementError,
)
from placement_traits.errors import ConflictError, InvalidValueError, NumaExtError, cut
from placement_traits.names import CONSUMER_TYPE_PREFIX, OWNER

_LOG: Final = logging.getLogger(__name__)

_REFUSED: Final = 409
_TRIES: Final = 10
_NEVER_HELD: Final = 0


class NoRoomError(PlacementError):
    """A provider does not have the amount any more; nothing was claimed."""


class ForeignConsumerError(NumaExtError):
    """A consumer is not one of ours."""


class ClaimStore:
    """Placement's allocations of our consumers.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when Placement does not answer.

    :param client: of a microversion with consumer types (1.38 or newer)
    """

    def __init__(self, client: PlacementClient) -> None:
        self._client = client

    def read(self, consumer: str) -> Claim | None:
        """Return what a consumer holds, None when it holds nothing.

        :raises ForeignConsumerError: it is not ours
        """
        claim = self._read(consumer)
        if claim and not _is_ours(claim):
            raise ForeignConsumerError(
                f"Consumer {consumer} is of type {claim.type}, not of ours ({CONSUMER_TYPE_PREFIX}…)."
            )
        return claim

    def of_provider(self, provider: str) -> Iterator[Claim]:
        """Yield each claim of ours that takes something of a provider, with all else that its consumer holds."""
        return self.of_providers((provider,))

    def of_providers(self, providers: Iterable[str]) -> Iterator[Claim]:
        """Yield each claim of ours that takes something of any of these providers, once; each consumer is read once."""
        seen: set[str] = set()
        for provider in providers:
            try:
                body = self._client.get(f"/resource_providers/{provider}/allocations")
            except NotFoundError:
                continue
            for consumer in sorted(body["allocations"].keys() - seen):
                seen.add(consumer)
                claim = self._read(consumer)
                if claim and _is_ours(claim):
                    yield claim

    def all(self) -> Iterator[Claim]:
        """Yield each claim of ours on any provider of ours, once; providers are read one by one."""
        if not self._client.get(f"/traits?name=in:{OWNER}")["traits"]:
            return  # no agent has ever published, and Placement refuses a trait that it does not know
        ours = self._client.get(f"/resource_providers?required={OWNER}")["resource_providers"]
        yield from self.of_providers(provider["uuid"] for provider in ours)

    def consumers(self, project: str) -> dict[str, int]:
        """Return how many consumers of ours hold something for a project, by their types."""
        usages = self._client.get(f"/usages?{urlencode({'project_id': project})}")["usages"]
        return {
            each: int(of_type["consumer_count"])
            for each, of_type in usages.items()
            if each.startswith(CONSUMER_TYPE_PREFIX)
        }

    def write(self, *claims: Claim, may: Callable[[], None] = lambda: None) -> None:
        """Make consumers hold what is given, all of them or none; done already is done.

        :param may: called right before each try; raises where this process may not write any more
        :raises NoRoomError: a provider does not have it any more
        :raises GenerationConflictError: a consumer has changed since it was read
        :raises ConflictError: also: others kept writing to the same providers
        :raises ForeignConsumerError: a consumer is not of our types
        :raises InvalidValueError: a claim asks for nothing, and held nothing
        :raises PlacementError: it names a provider or class that is not there
        """
        for claim in claims:
            _check(claim)
        for attempt in range(_TRIES):
            may()
            if attempt:
                self._forget_refused(claims)
            if self._written(claims):
                return
            self._client.pause(attempt)
        raise ConflictError(
            f"Others wrote to the same providers each time that {_named(claims)} should change."
        )

    def _written(self, claims: Sequence[Claim]) -> bool:
        """Try once; return False when only the providers were written by others meanwhile."""
        try:
            self._client.post("/allocations", {each.consumer: _body(each) for each in claims})
        except GenerationConflictError:
            held = [self._read(each.consumer) for each in claims]
            if all(map(_agrees, claims, held)):  # an earlier try did it, and its answer was lost
                return True
            if any(
                each.generation != (found.generation if found else None)
                for each, found in zip(claims, held, strict=True)
            ):
                raise
            return False
        except PlacementError as error:
            if error.status != _REFUSED:
                raise
            raise NoRoomError(error.what, error.status, error.code, error.detail) from error
        return True

    def _forget_refused(self, claims: Iterable[Claim]) -> None:
        """Delete what Placement keeps of new claims that it refused; of one that was never kept, nothing changes."""
        for claim in claims:
            if claim.generation is not None:
                continue
            kept = replace(emptied(claim), generation=_NEVER_HELD)
            try:
                self._client.post("/allocations", {kept.consumer: _body(kept)})
            except GenerationConflictError:
                _LOG.debug("Placement keeps no empty consumer %s.", kept.consumer)

    def _read(self, consumer: str) -> Claim | None:
        body = self._client.get(f"/allocations/{consumer}")
        if not body["allocations"]:
            return None
        return Claim(
            consumer,
            body["consumer_type"],
            body["project_id"],
            body["user_id"],
            {provider: entry["resources"] for provider, entry in body["allocations"].items()},
            body["consumer_generation"],
        )


def _agrees(claim: Claim, held: Claim | None) -> bool:
    """Return whether a consumer holds what it should."""
    if held is None:
        return not claim.amounts
    return (held.amounts, held.type, held.project) == (claim.amounts, claim.type, claim.project)


def _named(claims: Sequence[Claim]) -> str:
    return cut(", ".join(each.consumer for each in claims))


def _is_ours(claim: Claim) -> bool:
    return claim.type.startswith(CONSUMER_TYPE_PREFIX)


def _check(claim: Claim) -> None:
    if not _is_ours(claim):
        raise ForeignConsumerError(
            f"{claim.type} of consumer {claim.consumer} is not one of our types ({CONSUMER_TYPE_PREFIX}…)."
        )
    if claim.generation is None and not claim.amounts:
        raise InvalidValueError(
            f"claim of consumer {claim.consumer}", {}, "amounts of one or more providers"
        )


def _body(claim: Claim) -> dict[str, Any]:
    return {
        "allocations": {
            provider: {"resources": dict(amounts)} for provider, amounts in claim.amounts.items()
        },
        "project_id": claim.project,
        "user_id": claim.user,
        "consumer_type": claim.type,
        "consumer_generation": claim.generation,
    }
