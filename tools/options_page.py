"""Write ``docs/options.md`` from the options classes, so that the two cannot differ.

``python -m tools.options_page > docs/options.md``
"""

from __future__ import annotations

import re
import sys
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from kafkalog.streaming.consumer.consumer_options import ConsumerOptions, options_of_source
from kafkalog.streaming.options.declaring import options_of
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.options.store_options import StoreOptions
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

In brackets: what an option takes, and its default. Without brackets it takes text.

- A *size* takes `k`, `m`, `g` and `t` (powers of 1024), a *time* `ms`, `s`, `m`, `h` and `d`.
- A *timestamp* is `2026-11-22T10:15:00Z`, a day such as `2026-11-22` (from 00:00 UTC), or
  milliseconds since 1970. `yesterday` and `1h` are words of the command line alone.
- Names match in any case. An unknown name is refused, with the nearest known one.
- Settings of Kafka's clients (`kafka.bootstrap.servers`, security, tuning) are accepted and have no
  effect. One warning names them.

This page is generated from the classes that parse the options.
"""

_PREFIXED: Final = """\
Each name but `path` and `checkpointLocation` may have the prefix `kafka.`.
"""

_OF_CONSUMER: Final = """\
It also takes `storage.*`, and of the options for reading: """


def options_page() -> str:
    """Return the whole page."""
    parts = [
        _HEAD,
        *_section("Reading", ReadOptions),
        *_section("Writing", WriteOptions),
        *_section("A Consumer", ConsumerOptions),
        _OF_CONSUMER + _names_of_source() + ".\n",
        *_section("The store of a URI", StoreOptions),
    ]
    return "\n".join(parts)


def _names_of_source() -> str:
    names = [each.name for each in options_of_source() if not each.name.startswith("storage.")]
    return ", ".join(f"`{name}`" for name in names)


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
        yield from (_row(entry, shared=options.RULES.prefixed) for entry in entries)
        yield ""
    if not options.RULES.refused:
        return
    refused = ", ".join(f"`{name}`" for name in sorted(options.RULES.refused))
    yield f"Refused, each with its reason: {refused}.\n"


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
    told = [each for each in (_accepted(entry.kind.accepts), _default(entry)) if each]
    doc = entry.doc.replace("__", "\\_\\_")
    return f"- {name}" + (f" ({', '.join(told)})" if told else "") + f": {doc}"


_SHORT: Final = (
    (r"^true or false$|^a text .*$|^a folder: .*$|^a path or a URI .*$", ""),
    (
        r"^(log directories|names of topics|the name of a topic|a URL|key ids|a local folder)\b.*",
        "",
    ),
    (r"^a regular expression .*$", "Python's regular expression"),
    (r"^JSON such as (.*)$", r"`\1`"),
    (r"^(earliest, latest.*)$", "`earliest`, `latest`, `group:ID` or JSON"),
    (r"^a whole number|^a number", "number"),
    (r"^a size such as 1048576 or 64m", "size"),
    (r"^a time such as 1500, 5s, 15m or 7d \(ms without unit\)", "time"),
    (r"^a time such as 2026.*$", "timestamp"),
    (r" of at least (-?[01]|3600000)$| from 1 to (1000|100000|2147483647)$", ""),
)
"""What an option accepts, as errors say it, and in one word."""


def _accepted(accepts: str) -> str:
    for pattern, short in _SHORT:
        accepts = re.sub(pattern, short, accepts)
    words = re.match(r"one of (.*)$", accepts)
    return ", ".join(f"`{word}`" for word in words[1].split(", ")) if words else accepts


def _default(entry: Option) -> str:
    if entry.required:
        return "required"
    if entry.default is None:
        return "`true` or `false`" if entry.kind.accepts == "true or false" else ""
    text = str(entry.default)
    if isinstance(entry.default, bool):
        text = text.lower()
    elif entry.kind.accepts.startswith("a size"):
        text = _short_size(int(text))
    elif entry.kind.accepts.startswith("a time"):
        text = _short_time(int(text))
    return f"default `{text}`"


def _short_size(count: int) -> str:
    for unit, scale in (("m", 1 << 20), ("k", 1 << 10)):
        if count and count % scale == 0:
            return f"{count // scale}{unit}"
    return str(count)


def _short_time(count: int) -> str:
    for unit, scale in (("d", 86_400_000), ("m", 60_000), ("s", 1_000)):
        if count and count % scale == 0:
            return f"{count // scale}{unit}"
    return str(count)


if __name__ == "__main__":
    sys.stdout.write(options_page())
