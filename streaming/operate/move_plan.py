"""Where partitions are to lie: a plan in the JSON of Kafka's tool, or one for all of a topic.

::

    {"version":1,
     "partitions":[{"topic":"flights","partition":0,"replicas":[1,2],"log_dirs":["any","/mnt/c"]}]}

``log_dirs`` may be missing; else it has one entry for each replica, ``any`` or a log directory.

Source: Kafka ``ReassignPartitionsCommand.parsePartitionReassignmentData``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkalog.errors import OptionError, UnknownTopicOrPartitionError
from kafkalog.model import TopicPartition, said_there
from kafkalog.streaming.json_names import RepeatedNameError, parse_json
from kafkalog.streaming.operate.replicas import replicas_of
from kafkalog.streaming.store.replicas.placement import data_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kafkalog.checkpoints.commit_state import CommitState

__all__ = ["Move", "check_moves", "moves_of_topic", "parse_plan"]

_ANY: Final = "any"
_KINDS: Final = {"topic": str, "partition": int, "replicas": list, "log_dirs": list}
_ACCEPTS: Final = {
    "topic": "a text",
    "partition": "a number",
    "replicas": "a list of numbers",
    "log_dirs": "a list of texts",
}
_FIELDS: Final = _KINDS.keys()


class Move(NamedTuple):
    """A partition, and the nodes that are to hold it, the preferred leader first.

    ``log_dirs`` are where, for each of them; None where that does not matter.
    """

    key: TopicPartition
    replicas: tuple[int, ...]
    log_dirs: tuple[str | None, ...] = ()


def parse_plan(text: str) -> list[Move]:
    """Parse a plan.

    Raises:
        OptionError: it is none, or names a partition or a node twice.
    """
    try:
        plan = parse_json(text)
    except RepeatedNameError as error:
        raise _no_plan(str(error)) from None
    except (ValueError, RecursionError):
        raise _no_plan("it is no JSON") from None
    moves = [_parse_move(each) for each in _partitions_of(plan)]
    keys = [move.key for move in moves]
    for key in keys:
        if keys.count(key) > 1:
            raise OptionError(f"the plan names {key} twice")
    return moves


def _no_plan(why: str) -> OptionError:
    return OptionError(
        f"no plan of partitions: {why}. Expected, as kafka-reassign-partitions does, "
        '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[0,1]}]}'
    )


def _partitions_of(plan: Any) -> list[Any]:  # noqa: ANN401 - what JSON has
    if not isinstance(plan, dict) or not isinstance(plan.get("partitions"), list):
        raise _no_plan('it is no object with a list "partitions"')
    version = plan.get("version", 1)
    if version != 1:
        raise _no_plan(f"its version is {json.dumps(version):.20}, not 1")
    partitions: list[Any] = plan["partitions"]
    return partitions


def _parse_move(line: Any) -> Move:  # noqa: ANN401 - what JSON has
    shown = f"{json.dumps(line):.100}"
    if not isinstance(line, dict):
        raise _no_plan(f"{shown} is no partition")
    if unknown := sorted(line.keys() - _FIELDS):
        raise _no_plan(f'a partition has "{unknown[0]:.40}"')
    for name, kind in _KINDS.items():
        if type(line.get(name)) is not kind and (name in line or name != "log_dirs"):
            raise _no_plan(f'{shown} lacks "{name}", {_ACCEPTS[name]}')
    key = TopicPartition(line["topic"], line["partition"])
    replicas, log_dirs = tuple(line["replicas"]), tuple(line.get("log_dirs", ()))
    if not all(type(each) is int for each in replicas):
        raise _no_plan(f'{shown} lacks "replicas", {_ACCEPTS["replicas"]}')
    if not all(isinstance(each, str) for each in log_dirs):
        raise _no_plan(f'{shown} lacks "log_dirs", {_ACCEPTS["log_dirs"]}')
    if log_dirs and len(log_dirs) != len(replicas):
        raise _no_plan(f"{key} has {len(replicas)} replicas and {len(log_dirs)} log_dirs")
    return Move(key, replicas, tuple(None if each == _ANY else each for each in log_dirs))


def moves_of_topic(
    state: CommitState, topic: str, partition: int | None, replicas: Sequence[int]
) -> list[Move]:
    """Return the plan that lets some nodes hold a topic, or one partition of it.

    Leaders are spread: each partition begins with the next of the nodes.

    Raises:
        UnknownTopicOrPartitionError: the set does not know it.
    """
    known = [each for each in state.topics.values() if each.name == topic]
    numbers = sorted(n for each in known for n in each.replicas if partition in {None, n})
    if not numbers:
        name = topic if partition is None else f"{topic}-{partition}"
        raise UnknownTopicOrPartitionError(
            f"the set has no {name}. {said_there(topic, dict(replicas_of(state)))}"
        )
    return [
        Move(TopicPartition(topic, n), _turned(replicas, n if partition is None else 0))
        for n in numbers
    ]


def _turned(nodes: Sequence[int], steps: int) -> tuple[int, ...]:
    turn = steps % len(nodes) if nodes else 0
    return (*nodes[turn:], *nodes[:turn])


def check_moves(state: CommitState, moves: Iterable[Move]) -> None:
    """Refuse what a set cannot do.

    Raises:
        UnknownTopicOrPartitionError: it does not know a partition.
        OptionError: it does not know a node; or one is a witness, or named twice.
    """
    there = dict(replicas_of(state))
    able = data_nodes(state)
    for key, replicas, _ in moves:
        if key not in there:
            known = said_there(key.topic, there)
            raise UnknownTopicOrPartitionError(f"the set has no {key}. {known}")
        if not replicas or len({*replicas}) < len(replicas):
            raise OptionError(
                f"{key} is to lie on nodes {[*replicas]}: expected each node once, and one at least"
            )
        for node in replicas:
            if node not in able:
                raise OptionError(
                    f"{key} is to lie on node {node}: expected one of {able}, the nodes that hold "
                    "partitions"
                )
