"""Records of a cluster's metadata log (KRaft), and the log that a broker would keep of them."""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING

from tests.support.logs import Row, batch_bytes, write_segment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = [
    "change",
    "ids",
    "partition",
    "registered",
    "removed",
    "setting",
    "topic",
    "uuid",
    "write_metadata",
]


def uuid(text: str) -> bytes:
    """Return the bytes of an id as Kafka prints it."""
    return base64.urlsafe_b64decode(f"{text}==")


def topic(name: str, topic_id: str) -> bytes:
    """Return the record of a topic."""
    return b"\x01\x02\x00" + bytes([len(name) + 1]) + name.encode() + uuid(topic_id) + b"\0"


def setting(topic: str, name: str, value: str) -> bytes:
    """Return the record of a topic's setting."""
    texts = b"".join(bytes([len(each) + 1]) + each.encode() for each in (topic, name, value))
    return b"\x01\x04\x00\x02" + texts + b"\0"


def removed(topic_id: str) -> bytes:
    """Return the record of a topic's removal."""
    return b"\x01\x09\x00" + uuid(topic_id) + b"\0"


def partition(
    topic_id: str,
    number: int,
    replicas: Sequence[int],
    directories: Sequence[str] = (),
    *,
    version: int = 2,
    epoch: int = 0,
) -> bytes:
    """Return the record of a partition, whose first replica leads."""
    body = struct.pack(">i", number) + uuid(topic_id) + ids(*replicas) * 2 + ids() * 2
    body += struct.pack(">iii", replicas[0], epoch, 0)
    if version:
        body += bytes([len(directories) + 1]) + b"".join(map(uuid, directories))
    return b"\x01\x03" + bytes([version]) + body + b"\0"


def change(topic_id: str, number: int, **tagged: bytes) -> bytes:
    """Return the record of a change of a partition: of the fields that are given."""
    tags = {"isr": 0, "leader": 1, "replicas": 2, "elr": 6, "directories": 8}
    fields = b"".join(bytes([tags[name], len(each)]) + each for name, each in tagged.items())
    head = b"\x01\x05\x02" + struct.pack(">i", number) + uuid(topic_id)
    return head + bytes([len(tagged)]) + fields


def registered(broker: int, epoch: int, *, version: int = 4) -> bytes:
    """Return the record of a broker's registration; from version 4 on a directory is cordoned."""
    migrating = b"\0" if version >= 2 else b""
    body = struct.pack(">i", broker) + migrating + bytes(16) + struct.pack(">q", epoch)
    shutting_down = b"\0" if version >= 1 else b""
    tagged = b"\x01\x01\x11\x02" + bytes(15) + b"\x07" if version >= 4 else b"\0"
    return b"\x01\x00" + bytes([version]) + body + b"\x01\x01\0\0" + shutting_down + tagged


def ids(*numbers: int) -> bytes:
    """Return an array of broker ids."""
    return bytes([len(numbers) + 1]) + struct.pack(f">{len(numbers)}i", *numbers)


def write_metadata(folder: Path, *records: bytes) -> Path:
    """Write the metadata log of a broker into a log directory, and return that."""
    rows = [Row(record) for record in records]
    write_segment(folder / "__cluster_metadata-0", 0, batch_bytes(0, rows))
    return folder
