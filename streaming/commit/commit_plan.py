"""What is decided of a commit before its batch is staged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafkalog.checkpoints.commit_state import DEFAULT_EXPIRATION_MS
from kafkalog.streaming.store.policy import SetPolicy, TopicPolicy

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CommitPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPlan:
    """Where a batch is committed, and by which rules.

    ``directories`` are those that staged runs count in. ``planned_ms`` is when the batch was
    planned, by the wall clock. ``expiration_ms``: how long its writer is remembered.
    ``allows_unknown``: a query that the set does not know may begin above batch 0. With
    ``has_nodes`` the directories are those of several nodes. With ``acks_all`` as many replicas
    have to be in sync as ``min.insync.replicas`` says.
    """

    directories: tuple[Path, ...]
    planned_ms: int
    policy: SetPolicy = field(default_factory=SetPolicy)
    topics: TopicPolicy = field(default_factory=TopicPolicy)
    expiration_ms: int = DEFAULT_EXPIRATION_MS
    allows_unknown: bool = False
    has_nodes: bool = False
    acks_all: bool = True
