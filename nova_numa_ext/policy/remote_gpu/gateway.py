# SPDX-License-Identifier: Apache-2.0
"""What a GPU's host remembers of a lease: the half of the fence (:mod:`.leases`) that accepts clients or refuses them.

It outlives restarts of the host's processes. What the service says comes late, twice and in any order: an epoch older
than the one that is known changes nothing, and a newer one cuts all clients before it is acknowledged.

An epoch is served by one process. Before a process learns of it, the host takes note that it is *given*; when that
process is gone, no other one may serve the epoch: its clients would find the memory of the GPU empty. The service
raises it when it hears of that (:func:`.leases.fail`).
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Gateway:
    """One lease on the host of its GPU.

    :param epoch: newest that this host has learned, 0 before the first
    :param serves: a client of that epoch may connect
    :param given: newest epoch of which a process may have learned, 0 before the first
    """

    epoch: int = 0
    serves: bool = False
    given: int = 0

    @property
    def is_given(self) -> bool:
        """A process may have served the newest epoch: where none runs, no other one may."""
        return self.given >= self.epoch

    def learn(self, epoch: int | None) -> "Gateway":
        """Return what is so after the service said which epoch to serve, None for none.

        A client that is connected when the result is another one has to be cut before it is reported.
        """
        if epoch is None:
            return replace(self, serves=False)
        return replace(self, epoch=epoch, serves=True) if epoch >= self.epoch else self

    def give(self, epoch: int) -> "Gateway":
        """Return what is so when a process is about to learn of an epoch."""
        return replace(self, given=max(self.given, epoch))

    def accepts(self, epoch: int) -> bool:
        """Return whether a client that shows an epoch may connect."""
        return self.serves and epoch == self.epoch
