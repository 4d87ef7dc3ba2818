"""Write ``docs/options.md`` from the options classes, so that the two cannot differ.

``python -m tools.options_page > docs/options.md``
"""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from kafkalog.streaming.consumer.consumer_options import ConsumerOptions, options_of_source
from kafkalog.streaming.options.declaring import options_of
from kafkalog.streaming.options.read_options import ReadOptions, StoreOptions
from kafkalog.streaming.sink.write_options import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kafkalog.streaming.options.declaring import Option, Options

__all__ = ["options_page"]

_HEAD: Final = """\
# Options

```python
spark.readStream.format("kafkalog").option("subscribe", "flights").load("/var/kafka-logs")
```

- Names match in any case. An unknown name is refused, with the nearest known one.
- Sizes take `k`, `m`, `g` and `t` (powers of 1024). Times take `ms`, `s`, `m`, `h` and `d`.
- Settings of Kafka's clients (`kafka.bootstrap.servers`, security, tuning) are accepted and have no
  effect. One warning names them.

This page is generated from the classes that parse the options.
"""

_PREFIXED: Final = """\
The prefix `kafka.` may stand before each of these names but `path` and `checkpointLocation`:
`kafka.compression.type` is `compression.type`.
"""

_OF_CONSUMER: Final = """\
Of the options for reading it takes those that say how records are read and where a group begins:
"""


def options_page() -> str:
    """Return the whole page."""
    parts = [
        _HEAD,
        *_section("Reading", ReadOptions),
        *_section("Writing", WriteOptions),
        *_section("A Consumer", ConsumerOptions),
        *_section("The store of a URI", StoreOptions),
        _OF_CONSUMER + ", ".join(f"`{each.name}`" for each in options_of_source()) + ".\n",
    ]
    return "\n".join(parts)


def _section(title: str, options: type[Options]) -> Iterator[str]:
    yield f"## {title}\n"
    if options.RULES.prefixed:
        yield _PREFIXED
    declared = options_of(options)
    if options is not StoreOptions:
        declared = tuple(each for each in declared if not each.name.startswith("storage."))
    for subject, entries in _grouped(declared):
        if subject:
            yield f"### {title}: {subject}\n"
        yield "| option | accepts | default | meaning |\n| --- | --- | --- | --- |"
        yield from (_row(entry, shared=options.RULES.prefixed) for entry in entries)
        yield ""
    if not options.RULES.refused:
        return
    refused = [f"- `{name}`: {reason}" for name, reason in sorted(options.RULES.refused.items())]
    yield "Refused, and why:\n"
    yield "\n".join(refused) + "\n"


_SUBJECTS: Final[dict[str, str]] = {
    "what": "path subscribe subscribePattern assign waitForTopics view tombstones includeHeaders "
    "readUpTo kafka.isolation.level preferred.read.replica topic numPartitions partitioner "
    "replication.factor acks",
    "where from and to": "startingOffsets endingOffsets startingTimestamp endingTimestamp "
    "startingOffsetsByTimestamp endingOffsetsByTimestamp startingOffsetsByTimestampStrategy "
    "stopAtOffsets stateLocation",
    "values of a schema registry": "decode.* schema.*",
    "a remote tier": "remote.*",
    "once, whatever happens": "flush transactional.id transactional.id.expiration.ms txnAppId "
    "txnVersion allowUnknownCheckpoint checkpointLocation",
    "copies": "preserveOffsets preserveEnds copiedFrom",
    "a consumer group": "kafka.group.id kafka.group.instance.id joinGroup commitGroupOffsets",
    "loss and damage": "failOnDataLoss onCorruptRecord onTimestampOverflow fetchOffset.* "
    "maxDecompressedBytes",
    "limits": "maxOffsetsPerTrigger maxBytesPerTrigger minOffsetsPerTrigger maxTriggerDelay "
    "allowBrokerDirectory allowInternalTopics maxNewTopics",
    "settings of a new topic": "message.* compression.* max.message.bytes cleanup.policy "
    "retention.* delete.retention.ms *.compaction.lag.ms segment.* index.interval.bytes "
    "min.cleanable.dirty.ratio min.insync.replicas file.delete.delay.ms preallocate",
    "tuning": "*",
}
"""Subjects in their order, and the names of their options; those that no subject has are tuning."""


def _grouped(declared: Sequence[Option]) -> Iterator[tuple[str, list[Option]]]:
    """Put options under subjects, where there are many."""
    if len(declared) <= _FEW:
        yield "", [*declared]
        return
    found: dict[str, list[Option]] = {subject: [] for subject in _SUBJECTS}
    for entry in declared:
        found[_subject_of(entry.name)].append(entry)
    yield from ((subject, entries) for subject, entries in found.items() if entries)


_FEW: Final = 25


def _subject_of(name: str) -> str:
    return next(
        subject
        for subject, patterns in _SUBJECTS.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns.split())
    )


def _row(entry: Option, *, shared: bool) -> str:
    name = f"`{entry.name}`" + (f", `kafka.{entry.name}`" if entry.kafka and not shared else "")
    accepts = entry.kind.accepts + (f" ({entry.unit})" if entry.unit else "")
    cells = (name, accepts, _default(entry), entry.doc)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(entry: Option) -> str:
    if entry.required:
        return "must be given"
    if entry.default is None:
        return ""
    text = str(entry.default)
    return text.lower() if isinstance(entry.default, bool) else text


if __name__ == "__main__":
    sys.stdout.write(options_page())
