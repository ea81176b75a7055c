"""The interface of proposers that draft by asking others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from draft_service.proposers.base import Proposer


class Composite(Proposer):
    """Combines other proposers of its process, which stay what they are: requests may ask for each of them.

    The `sources` of its trees name them, so that verify counts what became of each one's nodes.
    """

    @abstractmethod
    def join(self, others: Mapping[str, Proposer]) -> None:
        """Told once, before `bind`, of all other proposers by name.

        The process advances them and shuts them down. Session numbers differ between all proposers, so a session may be
        opened at another one under its own number. Raises InvalidArgumentError (slipstream.rpc.errors) if they are not
        what the argument asks for.
        """
