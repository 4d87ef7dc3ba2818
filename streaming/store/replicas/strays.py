"""Put aside what a node brings back of topics that are gone: deleted, or made by half a commit.

Example: topic ``t`` was deleted while a node was away, and comes back with it. Nobody has the topic
any more, so its folders would look like those of a topic that a broker has made.

They are renamed to ``<topic>-<p>.<32 hex>-stray``, as a broker does with replicas that its cluster
does not know. Nobody removes them.

Source: Kafka ``LogManager.addStrayLog``, ``LocalLog.logStrayDirName``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.intent import load_intent
from kafkalog.files.system import system
from kafkalog.streaming.log.files import stray_directory_name
from kafkalog.streaming.log.log_dir import LogDirs
from kafkalog.streaming.store.stale_lines import drop_lines_of_gone

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState

__all__ = ["put_strays_aside"]

_LOGGER: Final = logging.getLogger("kafkalog.sink")


def put_strays_aside(folders: Iterable[Path], state: CommitState, own: CommitState) -> None:
    """Rename the folders of topics that a node knew and ``state`` does not.

    ``own`` is the older state that the node has, in the log directories ``folders``.

    REQUIRES: the locks are held.

    Raises:
        OSError, KafkaLogError: a folder cannot be looked at or renamed.
    """
    places = list(folders)
    known = {*own.topics, *own.deleted}
    for folder in places:
        intent = load_intent(folder)
        known |= {each.key for each in (intent.partitions if intent else ()) if each.created}
    gone = known - state.topics.keys() - state.deleted.keys()
    if not gone:
        return
    for found in LogDirs(places).partitions().values():
        name = found.topic_partition.topic
        if own.key_of(name, read_topic_id(found.path)) in gone:
            _LOGGER.warning("%s is of a topic that is gone, and is put aside", found.path)
            stray = stray_directory_name(*found.topic_partition, system.random_id().hex)
            # It stays renamed: to prepare a newer state here syncs the directory first.
            found.path.rename(found.log_dir / stray)
            drop_lines_of_gone(found.log_dir)
