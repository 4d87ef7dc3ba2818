"""Which broker of which cluster a log directory belongs to: its ``meta.properties``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import META_PROPERTIES, new_topic_id, read_meta_properties
from kafkalog.errors import OptionError
from kafkalog.files.atomic import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["check_identity", "refuse_another_identity", "write_meta_properties"]

_CLUSTER_ID: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


def check_identity(cluster_id: str | None, node_id: int | None) -> None:
    """Refuse what would make another ``meta.properties`` of it than was meant.

    Raises:
        OptionError: no id of a cluster, or a negative one of a node.
    """
    if cluster_id is not None and _CLUSTER_ID.fullmatch(cluster_id) is None:
        raise OptionError(
            f"{cluster_id[:40]!r} is no id of a cluster: it is a word of letters, digits, '.', '-' "
            "and '_', which kafka-cluster.sh cluster-id prints"
        )
    if node_id is not None and node_id < 0:
        raise OptionError(f"node id {node_id} is negative")


def refuse_another_identity(
    directories: Sequence[Path], cluster_id: str | None, node_id: int | None
) -> None:
    """Refuse directories that are another broker's: the one that was named would not start on them.

    Raises:
        OptionError: a directory has a ``meta.properties`` of another cluster or node.
        CheckpointError: one that cannot be read.
    """
    if cluster_id is None or node_id is None:
        return
    for folder in directories:
        found = read_meta_properties(folder)
        if found is None:
            continue
        cluster = found.get("cluster.id", cluster_id)
        node = found.get("node.id", found.get("broker.id", str(node_id)))
        if (cluster, node) != (cluster_id, str(node_id)):
            raise OptionError(
                f"{folder / META_PROPERTIES} is of cluster {cluster}, node {node}: node {node_id} "
                f"of cluster {cluster_id} would not start on it. Nothing was changed. Name the "
                "former, or move the file away"
            )


def write_meta_properties(folder: Path, cluster_id: str, node_id: int) -> None:
    """Write the file of a directory that has none, as a broker formats its own."""
    lines = {
        "cluster.id": cluster_id,
        "directory.id": new_topic_id(),
        "node.id": str(node_id),
        "version": "1",
    }
    content = "".join(f"{name}={value}\n" for name, value in lines.items())
    write_atomically(folder / META_PROPERTIES, content.encode())
