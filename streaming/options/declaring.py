"""Declare, document and parse options: once for source, sink and documentation.

An options class is a frozen dataclass whose fields are made by :func:`option`; the field carries
the option's name, what it accepts, its unit and its text, so that parsing, error messages and
``docs/options.md`` come from one place::

    @dataclass(frozen=True, slots=True, kw_only=True)
    class WriteOptions(Options):
        RULES: ClassVar[Rules] = Rules(ignored=KAFKA_CLIENT_OPTIONS)
        paths: tuple[str, ...] = option("path", PATHS, doc="the log directories")
        segment_bytes: int | None = option("segment.bytes", SIZE, default=None, kafka=True, doc="…")

    options = WriteOptions.parse({"path": "/var/log/kafka", "kafka.segment.bytes": "64m"})

Names match in any case, since Spark hands them over in lower case. An unknown name is refused, with
the nearest known one. (Spark's own connector ignores it, and a typo goes unseen.)
"""

from __future__ import annotations

import functools
import logging
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Self, TypeVar

from kafkalog.errors import OptionError
from kafkalog.files.storage import Secret
from kafkalog.files.system import once_per_process
from kafkalog.model import nearest
from kafkalog.streaming.options.quantities import quantity_hint
from kafkalog.texts import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from dataclasses import _MISSING_TYPE

    from kafkalog.streaming.options.kinds import Kind


__all__ = [
    "KAFKA_CLIENT_OPTIONS",
    "KAFKA_SECURITY_PREFIXES",
    "SPARK_OPTIONS",
    "Option",
    "Options",
    "Rules",
    "instead_of",
    "option",
    "options_of",
    "warn_ignored",
]


# ----------------------------------------------------------------------------------------------
# Settings of Kafka's clients that a query over a broker may carry, and that mean nothing here.
#
# A query that moves over from Spark's Kafka connector keeps its connection, security and tuning
# settings. They are accepted and ignored with one warning (``options.warn_ignored``). Source and
# sink ignore those of producers and of consumers alike, as one set of options often serves both.
#
# The names are those of ``CommonClientConfigs``, ``ConsumerConfig``, ``ProducerConfig`` and
# ``AdminClientConfig`` in Kafka 2.8, 3.9 (Spark 4.2's) and 4.1. A name that an options class
# declares or refuses itself is not ignored.


_NO_BROKER: Final = "no broker is asked: path names the log directories"

_INSTEAD: Final = {
    "auto.offset.reset": "startingOffsets says where reading begins: earliest, latest or offsets",
    "bootstrap.servers": _NO_BROKER,
    "enable.auto.commit": "commitGroupOffsets lets a streaming query write a group's positions",
    "fetch.max.bytes": "maxBytesPerTrigger limits a micro-batch",
    "group.id": "startingOffsets=group:ID begins where a group is; kafka.group.id names the group "
    "of a streaming query with joinGroup or commitGroupOffsets",
    "isolation.level": "it is called kafka.isolation.level here",
    "max.partition.fetch.bytes": "maxBytesPerTrigger limits a micro-batch",
    "max.poll.records": "maxOffsetsPerTrigger limits a micro-batch",
}

_INSTEAD_IN_CONSUMER: Final = {
    "auto.offset.reset": "the option startingOffsets says where a group begins: earliest or latest",
    "bootstrap.servers": _NO_BROKER,
    "enable.auto.commit": "there is none like it: call commit",
    "group.id": "the argument group_id names the group",
    "isolation.level": "the option kafka.isolation.level does the same",
    "max.poll.records": "there is none like it: poll returns the rows of one read of a partition",
}

_INSTEAD_IN_SINK: Final = {"bootstrap.servers": _NO_BROKER}

_OF_SINK: Final = frozenset(
    {
        *("acks", "compression.type", "compression.gzip.level", "compression.lz4.level"),
        *("compression.zstd.level", "max.block.ms", "transactional.id"),
    }
)
"""What the sink takes."""

_OF_MEMBERS: Final = frozenset(
    {
        *("client.id", "heartbeat.interval.ms", "max.poll.interval.ms", "session.timeout.ms"),
        *("partition.assignment.strategy", "rebalance.timeout.ms"),
    }
)
"""What a Consumer takes after the prefix ``kafka.``, and a query with ``joinGroup``."""

_COMMON = """
bootstrap.servers bootstrap.controllers client.dns.lookup client.id client.rack
connections.max.idle.ms default.api.timeout.ms enable.metrics.push metadata.max.age.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms receive.buffer.bytes
reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms
retry.backoff.ms security.protocol security.providers send.buffer.bytes
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
auto.include.jmx.reporter config.providers
"""

_CONSUMER = """
allow.auto.create.topics auto.commit.interval.ms auto.offset.reset check.crcs
enable.auto.commit exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes
group.id group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
internal.leave.group.on.close internal.throw.on.fetch.stable.offset.unsupported isolation.level
key.deserializer max.partition.fetch.bytes max.poll.interval.ms max.poll.records
partition.assignment.strategy session.timeout.ms share.acknowledgement.mode value.deserializer
"""

_PRODUCER = """
acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.type
compression.zstd.level delivery.timeout.ms enable.idempotence
internal.auto.downgrade.txn.commit key.serializer linger.ms max.block.ms
max.in.flight.requests.per.connection max.request.size metadata.max.idle.ms
partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
partitioner.ignore.keys transaction.timeout.ms transaction.two.phase.commit.enable
transactional.id value.serializer
"""

KAFKA_CLIENT_OPTIONS: Final = frozenset(
    "kafka." + name for name in (_COMMON + _CONSUMER + _PRODUCER).split()
)
"""Known client settings, with the ``kafka.`` prefix under which Spark's connector takes them."""

KAFKA_SECURITY_PREFIXES: Final = ("kafka.ssl.", "kafka.sasl.", "kafka.config.providers.")
"""Families of settings whose members depend on mechanisms and plug-ins."""


def instead_of(name: str, *, asked: Literal["query", "consumer", "sink"] = "query") -> str | None:
    """Say what to use for a setting of Kafka's clients; None for a name that they do not have.

    Python clients write ``_`` for dots, and Spark begins names with ``kafka.``. ``asked`` is what
    was given the name.
    """
    known = name.lower().replace("_", ".").removeprefix("kafka.")
    instead = {
        "query": _INSTEAD,
        "consumer": _INSTEAD_IN_CONSUMER,
        "sink": _INSTEAD_IN_SINK,
    }[asked].get(known)
    if instead is not None:
        return instead
    if asked == "sink" and known in _OF_SINK:
        return f"the option {known} does it"
    if asked != "sink" and known in _OF_MEMBERS:
        where = "the same" if asked == "consumer" else "it, in a streaming query with joinGroup"
        return f"the option kafka.{known} does {where}"
    if f"kafka.{known}" in KAFKA_CLIENT_OPTIONS:
        return "Kafka's clients have it, and it means nothing here: leave it out"
    return None


# ----------------------------------------------------------------------------------------------

_LOGGER = logging.getLogger("kafkalog.options")

T = TypeVar("T")

SPARK_OPTIONS: Final = frozenset({"path", "queryname", "checkpointlocation"})
"""What Spark puts among the options by itself; ignored without a word where no field claims it."""

_METADATA: Final = "kafkalog.option"
_KAFKA_PREFIX: Final = "kafka."


@dataclass(frozen=True, slots=True)
class Option:
    """One declared option: its public ``name``, what it ``accepts``, default, unit and text."""

    name: str
    kind: Kind[object]
    default: object
    """The default value; ``dataclasses.MISSING`` if the option must be given."""
    unit: str
    doc: str
    kafka: bool
    """Whether the name may also be written with Kafka's ``kafka.`` prefix."""
    field: str
    secret: bool = False

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is MISSING

    def spellings(self) -> Iterator[str]:
        """Yield the names that mean this option, in lower case."""
        yield self.name.lower()
        if self.kafka:
            yield _KAFKA_PREFIX + self.name.lower()

    def read(self, text: str) -> object:
        """Turn the option's text into its value, or say what would have been accepted."""
        try:
            return Secret(self.kind.read(text)) if self.secret else self.kind.read(text)
        except OptionError as error:
            raise OptionError(f"option {self.name!r}: {error}") from None
        except ValueError:
            raise OptionError(
                f"option {self.name!r} is {shortened(text)!r}, but accepts {self.kind.accepts}"
                f"{quantity_hint(self.unit, text)}"
            ) from None


@dataclass(frozen=True, slots=True)
class Rules:
    """What an options class does with names that are not its own.

    ``ignored`` names and ``ignored_prefixes`` mean something to others (a broker's client) and are
    accepted with a warning; ``refused`` maps a name to the reason why it cannot be used. Names are
    written as users write them and matched in any case. ``prefixed``: each option may have the
    prefix ``kafka.``, but for Spark's own.
    """

    ignored: frozenset[str] = frozenset()
    ignored_prefixes: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    prefixed: bool = False

    def ignores(self, key: str) -> bool:
        """Whether ``key`` (lower case) is accepted and has no effect."""
        return key in _lowered(self.ignored) or key.startswith(self.ignored_prefixes)

    def refuse(self, key: str) -> None:
        """Raise OptionError with the reason if ``key`` (lower case) is a refused name.

        With or without Kafka's prefix, which Kafka's own clients do not know.
        """
        for name, reason in self.refused.items():
            known = name.lower()
            if key in {known, known.removeprefix(_KAFKA_PREFIX)}:
                shown = name if key == known else name.removeprefix(_KAFKA_PREFIX)
                raise OptionError(f"option {shown!r} cannot be used: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Base of the options classes: parsing, and the names that were given without effect."""

    RULES: ClassVar[Rules] = Rules()

    ignored: tuple[str, ...] = ()
    """Names given that mean something only to a broker's client; see :func:`warn_ignored`."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Check and convert what the user wrote.

        Raises:
            OptionError: a value that is not accepted, a refused or unknown name, one option given
                twice with different values, or a required one missing.
        """
        declared = _of_class(cls)
        values: dict[str, Any] = {}
        ignored: list[str] = []
        for name in given:  # a reason says more than whatever else is wrong
            cls.RULES.refuse(name.lower())
        for name, text in given.items():
            known = declared.by_key.get(name.lower())
            if known is not None:
                value = known.read(text)
                if values.setdefault(known.field, value) != value:
                    raise OptionError(f"option {known.name!r} is given twice with two values")
            elif cls._passes(name):
                ignored.append(name)
        for known in declared.options:
            if known.required and known.field not in values:
                raise OptionError(
                    f"option {known.name!r} is missing: {known.doc} ({known.kind.accepts})"
                )
        return cls(ignored=tuple(sorted(ignored)), **values)

    @classmethod
    def _passes(cls, name: str) -> bool:
        """Return whether a name without a field deserves a warning; refuse an unknown one."""
        key = name.lower()
        if key in SPARK_OPTIONS:
            return False
        if cls.RULES.ignores(key):
            return True
        raise OptionError(f"option {name!r} is not known{_hint(key, cls)}")


def option(
    name: str,
    kind: Kind[T],
    *,
    doc: str,
    default: T | _MISSING_TYPE = MISSING,
    unit: str = "",
    kafka: bool = False,
    secret: bool = False,
) -> T:
    """Declare one option as a field of an :class:`Options` dataclass; no default = required.

    ``kafka`` also accepts the name after Kafka's ``kafka.`` prefix. A ``secret`` is a
    :class:`~kafkalog.files.storage.Secret`.
    """
    metadata = {_METADATA: (name, kind, unit, doc, kafka, secret)}
    declared: Any = (
        field(metadata=metadata, repr=not secret)
        if default is MISSING
        else field(default=default, metadata=metadata, repr=not secret)
    )
    value: T = declared
    return value


def options_of(cls: type[Options]) -> tuple[Option, ...]:
    """List the options that a class declares, in the order of declaration."""
    return _of_class(cls).options


class _OfClass(NamedTuple):
    """The options of a class, also by all of their spellings."""

    options: tuple[Option, ...]
    by_key: Mapping[str, Option]


_KNOWN: Final[dict[type[Options], _OfClass]] = {}


def _of_class(cls: type[Options]) -> _OfClass:
    found = _KNOWN.get(cls)
    if found is None:
        known = (entry for entry in fields(cls) if _METADATA in entry.metadata)
        options = tuple(_declared(entry, prefixed=cls.RULES.prefixed) for entry in known)
        by_key = {key: known for known in options for key in known.spellings()}
        found = _KNOWN[cls] = _OfClass(options, by_key)
    return found


def _declared(entry: Field[Any], *, prefixed: bool) -> Option:
    name, kind, unit, doc, kafka, secret = entry.metadata[_METADATA]
    kafka |= prefixed and name.lower() not in SPARK_OPTIONS and not name.startswith(_KAFKA_PREFIX)
    return Option(name, kind, entry.default, unit, doc, kafka, entry.name, secret)


@once_per_process
def warn_ignored(names: tuple[str, ...]) -> None:
    """Say once per process which options were given that have no effect here.

    Only names are shown: values may be secrets (``kafka.sasl.jaas.config``).
    """
    if names:
        _LOGGER.warning(
            "kafkalog reads and writes log directories itself: these options of Kafka's clients "
            "are accepted and have no effect: %s",
            ", ".join(names),
        )


def _hint(key: str, cls: type[Options]) -> str:
    known = {entry.name.lower(): entry.name for entry in options_of(cls)}
    prefixed = _KAFKA_PREFIX + key.replace("_", ".")
    if prefixed in known:
        return f": did you mean {known[prefixed]!r}?"
    if cls.RULES.ignores(prefixed):
        return f": {instead_of(key, asked='sink' if cls.RULES.prefixed else 'query')}"
    near = nearest(key, (*known.values(), *cls.RULES.refused, *cls.RULES.ignored))
    return f": did you mean {near!r}?" if near else ""


@functools.cache
def _lowered(names: frozenset[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)
