"""Move replicas between a broker's log directories: Kafka's ``AlterReplicaLogDirs`` request.

No Python client has it, and the tool that has it is a JVM of its own for each move.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.kafka import Broker

    from kafkalog.model import TopicPartition

__all__ = ["move_replicas"]

_API_KEY: Final = 34
_VERSION: Final = 1
_SECONDS: Final = 60


def move_replicas(broker: Broker, moves: Mapping[TopicPartition, Path]) -> None:
    """Ask the broker to move replicas, each to a log directory of its; it copies them meanwhile."""
    body = struct.pack(">i", len(moves))
    for (topic, partition), log_dir in moves.items():
        body += _text(str(log_dir)) + struct.pack(">i", 1)
        body += _text(topic) + struct.pack(">ii", 1, partition)
    request = struct.pack(">hhi", _API_KEY, _VERSION, 7) + _text("kafkalog-tests") + body
    with socket.create_connection(("127.0.0.1", broker.port), _SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = _received(connection, *struct.unpack(">i", _received(connection, 4)))
    assert _errors(answer) == [0] * len(moves), answer


def _errors(answer: bytes) -> list[int]:
    """Take the error codes out of a response: correlation id, throttle time, then the topics."""
    (topics,) = struct.unpack_from(">i", answer, 8)
    position, codes = 12, []
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", answer, position)
        position += 2 + length
        (partitions,) = struct.unpack_from(">i", answer, position)
        position += 4
        for _ in range(partitions):
            codes.append(struct.unpack_from(">h", answer, position + 4)[0])
            position += 6
    return codes


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        assert more, "the broker has closed the connection"
        data += more
    return data
