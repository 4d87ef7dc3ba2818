"""A topic's settings, under Kafka's names, with Kafka's defaults and ranges.

The table of fields below is the only place that knows them: parsing, error messages and what is
persisted with a topic come from it.

Source: Kafka ``LogConfig``, ``TopicConfig`` (4.1). ``segment.bytes`` keeps the lower bound that
Kafka had up to 3.9: 4.x refuses topics with segments below 1 MiB, but serves their logs.
``message.format`` is ours: Kafka had ``message.format.version`` up to 3.x, by release instead of by
format, and writes v2 alone since.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Self

from kafkalog.errors import OptionError
from kafkalog.model import TimestampType, nearest
from kafkalog.streaming.options.quantities import (
    DURATION_UNITS_MS,
    SIZE_UNITS,
    quantity_hint,
    read_quantity,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "COMPRESSION_TYPES",
    "LOG_CONFIG_NAMES",
    "REMOTE_STORAGE",
    "LogConfig",
    "is_remote",
    "understood",
    "without_units",
]

REMOTE_STORAGE: Final = "remote.storage.enable"
"""Given to topics of which a broker keeps records in another storage (KIP-405)."""

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_NAME: Final = "name"
_PARSE: Final = "parse"


def _setting(name: str, default: object, parse: Callable[[str, str], object]) -> Any:  # noqa: ANN401 - a field of any type
    return field(default=default, metadata={_NAME: name, _PARSE: parse})


_EXAMPLES: Final = {"ms": ", or such as 7d", "bytes": ", or such as 1g"}


def _integer(low: int, high: int) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            hint = quantity_hint(name, text) or _EXAMPLES.get(name.rpartition(".")[2], "")
            raise OptionError(f"{name} is {text!r}, expected an integer{hint}") from None
        if not low <= number <= high:
            raise OptionError(f"{name} is {number}, expected a number from {low} to {high}")
        return number

    return parse


def _ratio(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise OptionError(f"{name} is {text!r}, expected a number") from None
    if not 0 <= number <= 1:
        raise OptionError(f"{name} is {text}, expected a number from 0 to 1")
    return number


def _boolean(name: str, text: str) -> bool:
    if text.strip().lower() not in {"true", "false"}:
        raise OptionError(f"{name} is {text!r}, expected true or false")
    return text.strip().lower() == "true"


def _gzip_level(name: str, text: str) -> int:
    level = _integer(-1, 9)(name, text)
    if level == 0:
        raise OptionError(f"{name} is 0, expected a number from 1 to 9, or -1 for zlib's default")
    return level


_SINCE_V2: Final = ("zstd",)
COMPRESSION_TYPES: Final = ("producer", "uncompressed", "gzip", "snappy", "lz4", *_SINCE_V2)
"""What a topic may say; each codec by its name, ``none`` as ``uncompressed``. Message formats
before v2 have none of ``_SINCE_V2``."""


def _compression_type(name: str, text: str) -> str:
    """``none`` is what producers call it, ``uncompressed`` what topics do."""
    kind = "uncompressed" if text == "none" else text
    if kind not in COMPRESSION_TYPES:
        raise OptionError(f"{name} is {text!r}, expected none or {', '.join(COMPRESSION_TYPES)}")
    return kind


def _cleanup_policy(name: str, text: str) -> tuple[str, ...]:
    policies = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    if not policies or not set(policies) <= {"delete", "compact"}:
        raise OptionError(f"{name} is {text!r}, expected delete, compact or both")
    return tuple(dict.fromkeys(policies))


def _message_format(name: str, text: str) -> str:
    if text not in {"v0", "v1", "v2"}:
        raise OptionError(f"{name} is {text!r}, expected v0, v1 or v2")
    return text


_TIMESTAMP_TYPES: Final = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}


def _timestamp_type(name: str, text: str) -> TimestampType:
    if text not in _TIMESTAMP_TYPES:
        raise OptionError(f"{name} is {text!r}, expected {' or '.join(_TIMESTAMP_TYPES)}")
    return _TIMESTAMP_TYPES[text]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The settings of one topic; times in ms, sizes in bytes."""

    # Behaviour
    cleanup_policy: tuple[str, ...] = _setting("cleanup.policy", ("delete",), _cleanup_policy)
    compression_type: str = _setting("compression.type", "producer", _compression_type)
    compression_gzip_level: int = _setting("compression.gzip.level", -1, _gzip_level)
    compression_lz4_level: int = _setting("compression.lz4.level", 9, _integer(1, 17))
    compression_zstd_level: int = _setting("compression.zstd.level", 3, _integer(-131072, 22))
    max_message_bytes: int = _setting("max.message.bytes", 1048588, _integer(0, _INT_MAX))
    message_format: str = _setting("message.format", "v2", _message_format)
    message_timestamp_type: TimestampType = _setting(  # noqa: RUF009 - it makes a field
        "message.timestamp.type", TimestampType.CREATE_TIME, _timestamp_type
    )
    message_timestamp_before_max_ms: int = _setting(
        "message.timestamp.before.max.ms", _LONG_MAX, _integer(0, _LONG_MAX)
    )
    message_timestamp_after_max_ms: int = _setting(
        "message.timestamp.after.max.ms", 3_600_000, _integer(0, _LONG_MAX)
    )
    retention_bytes: int = _setting("retention.bytes", -1, _integer(-_LONG_MAX - 1, _LONG_MAX))
    retention_ms: int = _setting("retention.ms", 604_800_000, _integer(-1, _LONG_MAX))
    delete_retention_ms: int = _setting("delete.retention.ms", 86_400_000, _integer(0, _LONG_MAX))
    min_compaction_lag_ms: int = _setting("min.compaction.lag.ms", 0, _integer(0, _LONG_MAX))
    max_compaction_lag_ms: int = _setting(
        "max.compaction.lag.ms", _LONG_MAX, _integer(1, _LONG_MAX)
    )
    min_cleanable_dirty_ratio: float = _setting("min.cleanable.dirty.ratio", 0.5, _ratio)
    file_delete_delay_ms: int = _setting("file.delete.delay.ms", 60_000, _integer(0, _LONG_MAX))
    min_insync_replicas: int = _setting("min.insync.replicas", 1, _integer(1, _INT_MAX))
    unclean_leader_election_enable: bool = _setting(
        "unclean.leader.election.enable", default=False, parse=_boolean
    )

    # Performance
    segment_bytes: int = _setting("segment.bytes", 1 << 30, _integer(14, _INT_MAX))
    segment_ms: int = _setting("segment.ms", 604_800_000, _integer(1, _LONG_MAX))
    segment_jitter_ms: int = _setting("segment.jitter.ms", 0, _integer(0, _LONG_MAX))
    segment_index_bytes: int = _setting("segment.index.bytes", 10 << 20, _integer(4, _INT_MAX))
    index_interval_bytes: int = _setting("index.interval.bytes", 4096, _integer(0, _INT_MAX))
    flush_messages: int = _setting("flush.messages", _LONG_MAX, _integer(1, _LONG_MAX))
    flush_ms: int = _setting("flush.ms", _LONG_MAX, _integer(0, _LONG_MAX))
    preallocate: bool = _setting("preallocate", default=False, parse=_boolean)

    def __post_init__(self) -> None:
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise OptionError(
                f"min.compaction.lag.ms is {self.min_compaction_lag_ms}, expected at most "
                f"max.compaction.lag.ms, which is {self.max_compaction_lag_ms}"
            )
        if self.magic < 2 and self.compression_type in _SINCE_V2:
            raise OptionError(
                f"compression.type is {self.compression_type} and message.format is "
                f"{self.message_format}: {self.compression_type} came with v2, older formats take "
                "gzip, snappy or lz4"
            )

    @classmethod
    def from_mapping(cls, settings: Mapping[str, str]) -> Self:
        """Parse settings by Kafka's names, each as text; the rest take their defaults.

        Raises:
            OptionError: an unknown name, or a value that Kafka would refuse.
        """
        values = {}
        for name, text in settings.items():
            known = _FIELDS.get(name)
            if known is None:
                raise OptionError(f"{name!r} is no topic setting{_nearest(name)}")
            values[known.name] = known.metadata[_PARSE](name, text)
        return cls(**values)

    @classmethod
    def of_topic(cls, settings: Mapping[str, str]) -> Self:
        """Take the settings that are kept with a topic; it never raises.

        What :func:`understood` leaves out does not count, nor what does not go with the rest: a
        broker may have given it to the topic.
        """
        known = understood(settings)
        with suppress(OptionError):
            return cls.from_mapping(known)
        found: dict[str, str] = {}
        for name, text in known.items():
            with suppress(OptionError):
                cls.from_mapping({**found, name: text})
                found[name] = text
        return cls.from_mapping(found)

    @property
    def magic(self) -> int:
        """The magic of what is written, 0 to 2."""
        return int(self.message_format[1:])

    @property
    def max_segment_ms(self) -> int:
        """The age at which a segment rolls: compaction must reach its records in time."""
        if "compact" in self.cleanup_policy:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms


_UNITS: Final = {"ms": DURATION_UNITS_MS, "bytes": SIZE_UNITS}
"""By the last part of a setting's name."""

_FIELDS: Final[dict[str, Field[Any]]] = {
    known.metadata[_NAME]: known for known in fields(LogConfig)
}

LOG_CONFIG_NAMES: Final = frozenset(_FIELDS)
"""Every name that :meth:`LogConfig.from_mapping` knows."""


def understood(settings: Mapping[str, str]) -> dict[str, str]:
    """Return those of a topic's settings of which name and value are known.

    The others came from a broker: settings of tiered storage, of replicas, of a later release.
    """
    found = {}
    for name, text in settings.items():
        with suppress(OptionError):
            LogConfig.from_mapping({name: text})
            found[name] = text
    return found


def without_units(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings as Kafka writes them: of ``retention.ms=7d``, the number of ms.

    A text that is no such number stays as it is: who parses it says what is wrong.
    """
    found = dict(settings)
    for name, text in settings.items():
        units = _UNITS.get(name.rpartition(".")[2])
        if name in LOG_CONFIG_NAMES and units is not None:
            with suppress(ValueError):
                found[name] = str(read_quantity(units, text))
    return found


def is_remote(settings: Mapping[str, str]) -> bool:
    """Return whether a broker keeps records of a topic with these settings elsewhere, too."""
    return settings.get(REMOTE_STORAGE, "").strip().lower() == "true"


def _nearest(name: str) -> str:
    near = nearest(name, _FIELDS)
    return f"; did you mean {near!r}?" if near else ""
