"""The log, and what Spark does with it: from bytes (``records``) to Spark (``spark``).

From bottom to top; each package imports those above it in this list, and none below:

``records``, ``options``
    bytes of batches; what a user may say.
``log``
    segments, indexes, partitions, log directories, compaction.
``coordinator``, ``decoding``
    Kafka's internal topics; values of a schema registry.
``tiers``
    log directories and what their broker has moved to a remote tier, as one log.
``store``, ``objects``
    a set of log directories: sessions, locks, commit state, rollback, replicas; a log in an object
    store: its commits, and which of two writers is first.
``commit``
    a batch's way into either.
``groups``
    consumer groups.
``source``, ``sink``, ``admin``
    what a query reads, what it writes, what an operator does.
``consumer``, ``lookup``
    members of groups; the newest row of each key.
``spark``, ``api``
    what Spark sees, and the same from Python.

``docs/architecture.md`` follows a row through them. Read ``source`` or ``sink`` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.files.storage import LOG_FINDERS, TieredRoot, is_object_uri

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.files.storage import RemoteRoot


def _find_log(place: RemoteRoot) -> Path | None:
    """Let whoever opens a place find the log in a bucket that lies there, or in a tier."""
    if isinstance(place, TieredRoot):
        from kafkalog.streaming.tiers.tiered_store import open_tiers  # noqa: PLC0415 - few need it

        return open_tiers(place)
    if not is_object_uri(place):
        return None
    from kafkalog.streaming.objects.bucket_store import find_log  # noqa: PLC0415 - few need it

    return find_log(place)


LOG_FINDERS.append(_find_log)
