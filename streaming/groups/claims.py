"""Which member owned a partition before a rebalance, where several may say that they did.

Example: A says that it owned ``t-0`` in generation 7, B that it did in generation 5. A did: B was
away for a while. If both name generation 7, one of them is wrong, and nothing tells which. Then
neither keeps the partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.groups.subscriptions import Subscription

__all__ = ["Claims"]


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of all members.

    Attributes:
        owner: whose a partition was; of those that exist.
        claimants: everybody who claims a partition.
    """

    owner: dict[TopicPartition, str]
    claimants: dict[TopicPartition, list[str]]

    @classmethod
    def of(cls, topics: Mapping[str, int], members: Mapping[str, Subscription]) -> Claims:
        """Compare what the members say."""
        claimants: dict[TopicPartition, list[str]] = {}
        for member, subscription in members.items():
            for partition in dict.fromkeys(subscription.owned):
                claimants.setdefault(partition, []).append(member)
        owner = {}
        for partition, names in claimants.items():
            if not 0 <= partition.partition < topics.get(partition.topic, 0):
                continue
            newest, *older = sorted(names, key=lambda name: -members[name].generation)
            if not older or members[newest].generation > members[older[0]].generation:
                owner[partition] = newest
        return cls(owner, claimants)

    def is_held_by_other(self, partition: TopicPartition, member: str) -> bool:
        """Whether somebody else has to give the partition up before ``member`` gets it."""
        if self.owner.get(partition) == member:
            return False
        return any(name != member for name in self.claimants.get(partition, ()))
