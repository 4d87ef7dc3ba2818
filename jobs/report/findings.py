"""What is wrong with log directories, which command mends it, and what a report adds up."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, replace
from html import unescape
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkalog.checkpoints.broker import META_PROPERTIES
from kafkalog.errors import OptionError
from kafkalog.jobs.inspection.batches import Fault
from kafkalog.jobs.inspection.figures import rows_of
from kafkalog.jobs.inspection.log_dirs import log_dirs_of
from kafkalog.jobs.inspection.units import shown_duration, shown_size
from kafkalog.model import ALL_TOPICS, many

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kafkalog.jobs.report.facts import Facts


__all__ = [
    "Finding",
    "Limits",
    "changes_since",
    "facts_as_rows",
    "figures_of",
    "find_problems",
    "finding_lines",
    "is_internal",
    "new_warnings",
    "read_figures",
    "reader_table",
    "summary_line",
    "summary_of",
    "topic_rows",
    "topic_table",
]


# ----------------------------------------------------------------------------------------------
# What is wrong with log directories, and which command mends it.


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong: where, what, and what to do.

    ``is_problem`` is False for what is worth knowing and damages nothing. ``commands`` are lines
    for a shell: the first of them changes nothing, where there is such a one.
    """

    is_problem: bool
    where: str
    texts: Sequence[str]
    advice: str
    commands: Sequence[str] = ()

    def row(self) -> dict[str, Any]:
        """Return it as a row of plain values."""
        return {
            "kind": "finding",
            "problem": self.is_problem,
            "where": self.where,
            "texts": list(self.texts),
            "advice": self.advice,
            "commands": list(self.commands),
        }


class Limits(NamedTuple):
    """What is a problem beyond what is broken; None where anything will do."""

    lag_ms: int | None = None
    """A reader whose next unread record is older."""
    days: float | None = None
    """A disk that is full in fewer days."""


_NO_LIMITS: Final = Limits()


def find_problems(facts: Facts, limits: Limits = _NO_LIMITS) -> list[Finding]:
    """Return what is wrong, problems first."""
    found = [
        *_unknown(facts),
        *_unfinished(facts),
        *_verified(facts),
        *_met(facts),
        *_unchecked_ends(facts),
        *_groups(facts),
        *_open_transactions(facts),
        *_unread(facts),
        *_late_readers(facts, limits.lag_ms),
        *_full_disks(facts, limits.days),
    ]
    if any("://" in path for path in facts.paths):
        found = [replace(each, advice=f"{_OF_STORES} {each.advice}") for each in found]
    return sorted(found, key=lambda each: not each.is_problem)


_OF_STORES: Final = (
    "A store is only read: to change anything, copy the directories to a local disk, and name the "
    "copy."
)


_PARTS: Final = {
    "topics": "topics",
    "partitions": "partitions",
    "offsets": "committed ends",
    "groups": "consumer groups",
    "writers": "writers",
    "records": "records and their batches",
    "transactions": "open transactions",
}


def _unknown(facts: Facts) -> Iterator[Finding]:
    errors: dict[str, tuple[str, list[str]]] = {}
    for part, error in facts.unknown.items():
        errors.setdefault(str(error), (error.remedy, []))[1].append(_PARTS[part])
    for text, (remedy, parts) in errors.items():
        where = f"{', '.join(parts)}: not all is known"
        yield Finding(True, where, [text], remedy.replace("`", ""), [_line("verify", facts)])


def new_warnings(facts: Facts, findings: Sequence[Finding]) -> list[str]:
    """Return what was logged while the facts were gathered, but for what the findings say."""
    said = [text for each in findings for text in each.texts]
    return [
        text for text in facts.warnings if not any(text in each or each in text for each in said)
    ]


def _unfinished(facts: Facts) -> Iterator[Finding]:
    names = [_name(row) for row in facts.partitions if row["unfinished"]]
    if names:
        yield Finding(
            True,
            "an unfinished commit",
            [f"A write to {', '.join(names)} was cut off. Readers do not see any of it."],
            "The next write rolls it back by itself. Until then this does:",
            [_line("recover", facts, "--dry-run"), _line("recover", facts)],
        )


def _verified(facts: Facts) -> Iterator[Finding]:
    said = {str(error) for error in facts.unknown.values()}
    wrong: dict[tuple[Fault, str], list[dict[str, Any]]] = {}
    for row, fault in facts.verified:
        if fault is not None and row["problem"] not in said:
            wrong.setdefault((fault, _name(row)), []).append(row)
    for (fault, name), rows in wrong.items():
        texts = [row["problem"] for row in rows]
        is_problem = fault is not Fault.HEADERS
        yield Finding(is_problem, name, texts, _ADVICE[fault], _remedy(facts, fault, rows[0]))


def _met(facts: Facts) -> Iterator[Finding]:
    """Say what was found damaged while records were counted, if nothing was verified."""
    for key, texts in facts.damage.items():
        commands = _remedy(facts, Fault.BATCHES, key._asdict())
        yield Finding(True, str(key), texts, _ADVICE[Fault.BATCHES], commands)


_ADVICE: Final = {
    Fault.BATCHES: "Put the file back from a copy or a replica. If there is none, see what would "
    "be lost, then drop it with --drop, or end the log there with --cut.",
    Fault.HEADERS: "Readers go by the records, and lose nothing. Searches by time, and deletion by "
    "age, go by the headers of old clients and brokers, and may be off. Nothing need be done.",
    Fault.INDEXES: "Readers scan the segment instead, which is slower and loses nothing. Build the "
    "index again from the log:",
    Fault.LOG_END: "Put the folder back from a copy or a replica that reaches further. If there is "
    "none, accept this end with --cut, or keep the missing offsets as a gap with --drop.",
    Fault.MISSING: "Name all directories of the set, see that each is mounted, and restore what is "
    "gone. If a broker moved or removed it, take the directories over from that broker.",
    Fault.REPLICAS: "A replica in sync has other bytes than its leader. Unless the leader's are "
    "damaged, they are copied to it. This says what would be done:",
    Fault.STATE: "What the directories say of themselves cannot be trusted. This says what can be "
    "done:",
    Fault.TIERED: "Read these records with the tier: option remote.path, or --remote of commands "
    "that read, names its store. What is here can be read with failOnDataLoss=false.",
}
_REBUILD: Final = ("python", "-m", "kafkalog.jobs.rebuild")


def _remedy(facts: Facts, fault: Fault, row: dict[str, Any]) -> list[str]:
    """Return the commands that go with a fault."""
    if fault in {Fault.BATCHES, Fault.LOG_END}:
        return [_line("salvage", facts, _name(row))]
    if fault in {Fault.HEADERS, Fault.TIERED}:
        return []
    if fault is Fault.INDEXES:
        where = ["--topic", row["topic"], "--partition", str(row["partition"])]
        return [shlex.join([*_REBUILD, ",".join(facts.paths), *where])]
    return [_line("broker takeover" if fault is Fault.MISSING else "recover", facts, "--dry-run")]


def _unchecked_ends(facts: Facts) -> Iterator[Finding]:
    """Say what is missing by the committed ends alone, if nothing was verified."""
    for row in () if facts.checks else facts.offsets:
        if row["missing"]:
            text = f"{row['missing']:,} offsets were committed and are not in the log"
            commands = _remedy(facts, Fault.LOG_END, row)
            yield Finding(True, _name(row), [text], _ADVICE[Fault.LOG_END], commands)


def _groups(facts: Facts) -> Iterator[Finding]:
    starts = {(row["topic"], row["partition"]): row["start"] for row in facts.offsets}
    rows = [row for row in facts.groups if row["topic"] is not None]
    for (group, topic), each in groupby(rows, lambda row: (row["group"], row["topic"])):
        ours = list(each)
        wrong = [row for row in ours if row["problem"]]
        if wrong:
            texts = [_at(row, row["problem"]) for row in wrong]
            places = {row["partition"]: row["end"] for row in wrong}
            yield _reset(facts, group, topic, texts, places, "latest")
        lost, places = [], {}
        for row in ours:
            start, offset = starts.get((topic, row["partition"])), row["offset"]
            if not row["problem"] and None not in {start, offset} and offset < start:
                text = f"the group stands at {offset:,}, and the log begins at {start:,}"
                lost.append(_at(row, text))
                places[row["partition"]] = start
        if lost:
            yield _reset(facts, group, topic, lost, places, "earliest")


def _at(row: dict[str, Any], text: str) -> str:
    return f"partition {row['partition']}: {text}"


_CONTINUE: Final = {
    "latest": "If the log was cut or recreated, let the group continue at its end (or at earliest, "
    "to read all again)",
    "earliest": "Records were deleted before the group read them. A consumer continues by its "
    "auto.offset.reset. To decide it now, let the group continue at the start",
}
_FORGET: Final = "These directories do not have it. If it is gone for good, forget the positions"
_EXPIRES: Final = (
    "These directories do not have it. If it is gone for good, the positions do no harm, and "
    "expire. All positions of the group"
)
_KAFKAS: Final = ("kafka-consumer-groups", "--bootstrap-server", "localhost:9092")


def _reset(
    facts: Facts, group: str, topic: str, texts: list[str], places: dict[int, int | None], to: str
) -> Finding:
    """Return a finding about a group's positions in a topic, and where it should continue.

    ``places`` has the partitions to move and where to, None if they are not there. The positions
    of other partitions are right: the command leaves them.
    """
    known = {number: place for number, place in places.items() if place is not None}
    where = to if known else None
    if facts.is_ours:
        advice, line = _by_us(facts, group, topic, known, where)
    else:
        advice, line = _with_broker(group, topic, known or places, where)
    return Finding(to != "earliest", f"group {group} in {topic}", texts, f"{advice}:", [line])


def _with_broker(group: str, topic: str, numbers: Iterable[int], to: str | None) -> tuple[str, str]:
    """Return the advice, and the command of Kafka; ``to`` is None if nothing is there."""
    named = ["--group", group, "--topic", f"{topic}:{','.join(map(str, numbers))}"]
    act = ["--delete-offsets"] if to is None else ["--reset-offsets", f"--to-{to}", "--dry-run"]
    advice = _FORGET if to is None else _CONTINUE[to]
    line = shlex.join([*_KAFKAS, *named, *act])
    return f"{advice}, with the broker that has the directories", line


def _by_us(
    facts: Facts, group: str, topic: str, places: dict[int, int], to: str | None
) -> tuple[str, str]:
    """Return the advice, and the command; ``to`` is None if nothing is there."""
    named = ["--group", group]
    if to is not None:
        told = json.dumps({topic: {str(number): place for number, place in places.items()}})
        return _CONTINUE[to], _line("group reset", facts, *named, "--offsets", told, "--dry-run")
    topics = {row["topic"] for row in facts.groups if row["group"] == group}
    if facts.wanted == ALL_TOPICS and topics == {topic}:
        return _FORGET, _line("group delete", facts, *named, "--dry-run")
    return _EXPIRES, _line("group describe", facts, *named)


def _open_transactions(facts: Facts) -> Iterator[Finding]:
    if facts.open_transactions:
        yield Finding(
            False,
            "open transactions",
            [
                f"{_name(row)}: one of producer {row['producerId']}, since offset "
                f"{row['firstOffset']:,}"
                for row in facts.open_transactions
            ],
            "Readers of committed records wait there until it ends, as a producer or its broker "
            "ends it. If both are gone for good, this ends it as its coordinator decided:",
            [_line("broker takeover", facts, "--abort-open-transactions", "--dry-run")],
        )


def _unread(facts: Facts) -> Iterator[Finding]:
    unfinished = {_name(row) for row in facts.partitions if row["unfinished"]}
    rows = [row for row in facts.offsets if row["unread"] and _name(row) not in unfinished]
    if rows:
        what = [f"{_name(row)}: {row['unread']:,} offsets from {row['end']:,} on" for row in rows]
        yield Finding(False, "records above the committed end", what, *_way_to_unread(facts, rows))


def _late_readers(facts: Facts, most: int | None) -> Iterator[Finding]:
    rows = reader_table(facts) if most is not None else []
    for reader, each in groupby(rows, lambda row: row["reader"]):
        late = [row for row in each if most is not None and (row["behindMs"] or 0) > most]
        if late and most is not None:
            texts = [f"{_name(row)}: {shown_duration(row['behindMs'])} behind" for row in late]
            advice = (
                f"More than {shown_duration(most)} (--warn-lag). See whether it runs, and whether "
                "it reads as fast as others write:"
            )
            yield Finding(True, f"reader {reader}", texts, advice, [_line("lag", facts)])


def _full_disks(facts: Facts, least: float | None) -> Iterator[Finding]:
    for row in facts.disks if least is not None else ():
        if row["daysUntilFull"] is not None and row["daysUntilFull"] < least:
            text = f"it is full in {row['daysUntilFull']:,.1f} days, at the pace of the last seven"
            advice = (
                f"Less than {least:g} days (--warn-days). Set retention.ms or retention.bytes of "
                "topics that keep everything, or give the log more room. This says what could go:"
            )
            commands = [_line("retain", facts, "--dry-run")]
            yield Finding(True, f"disk of {', '.join(row['paths'])}", [text], advice, commands)


def _way_to_unread(facts: Facts, rows: Sequence[dict[str, Any]]) -> tuple[str, list[str]]:
    """Return what to do about records that nothing says are committed, and the command."""
    folders = log_dirs_of(facts.paths).paths
    if not facts.is_ours or any((folder / META_PROPERTIES).exists() for folder in folders):
        words = ["--topic", rows[0]["topic"], "--records", "--set", "readUpTo=logEnd"]
        advice = (
            "Nobody reads them, as nothing says that they are committed. Of a copy whose broker is "
            "gone, the option readUpTo=logEnd reads them:"
        )
        return advice, [_line("dump", facts, *words)]
    advice = (
        "Nobody reads them: the directory was copied while a query wrote to it, or others put "
        "them there. This takes them over as they are:"
    )
    return advice, [_line("broker takeover", facts, "--dry-run")]


def _line(command: str, facts: Facts, *words: str) -> str:
    return shlex.join(["kafkalog", *command.split(), *facts.paths, *words])


def _name(row: dict[str, Any]) -> str:
    if row["topic"] is None:
        return "the log directories"
    topic: str = row["topic"]
    return topic if row["partition"] is None else f"{topic}-{row['partition']}"


# ----------------------------------------------------------------------------------------------
# What a report adds up, for the page and for ``--json``.


Row = dict[str, Any]


def is_internal(topic: str) -> bool:
    """Return whether a topic is Kafka's own, by its name."""
    return topic.startswith("__")


def summary_of(facts: Facts, findings: Sequence[Finding]) -> Row:
    """Return what is in log directories as one row; None where that could not be found out."""
    counts, is_known = facts.counts, "records" not in facts.unknown
    firsts = [row["firstTimestamp"] for row in counts if row["firstTimestamp"] is not None]
    lasts = [row["lastTimestamp"] for row in counts if row["lastTimestamp"] is not None]
    return {
        "paths": list(facts.paths),
        "topic": str(facts.wanted) or None,
        "time": facts.made_at,
        "topics": len({key.topic for key in facts.measured}),
        "partitions": len(facts.measured),
        "records": sum(row["records"] for row in counts) if is_known else None,
        "batches": sum(row["batches"] for row in counts) if is_known else None,
        "bytes": sum(row["bytes"] for row in topic_rows(facts)),
        "firstTimestamp": min(firsts, default=None),
        "lastTimestamp": max(lasts, default=None),
        "groups": None if "groups" in facts.unknown else len({r["group"] for r in facts.groups}),
        "verified": facts.checks,
        "problems": sum(each.is_problem for each in findings),
    }


def topic_rows(facts: Facts) -> list[Row]:
    """Return a row for each topic, of all its partitions: the largest first, internal ones last."""
    if "records" in facts.unknown:
        rows = {row["topic"]: {**_UNKNOWN, **row} for row in facts.topics}
    else:
        rows = _added_up(facts)
    return sorted(
        rows.values(), key=lambda row: (is_internal(row["topic"]), -row["bytes"], row["topic"])
    )


_TIMES: Final[Row] = {"firstTimestamp": None, "lastTimestamp": None}
_UNKNOWN: Final[Row] = {
    **dict.fromkeys(("records", "batches", "markers", "largest")),
    "codecs": {},
    **_TIMES,
}


def _added_up(facts: Facts) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for count in facts.counts:
        row = rows.setdefault(count["topic"], _no_topic(count["topic"]))
        row["partitions"] += 1
        row["largest"] = max(row["largest"], count["bytes"])
        for name in ("records", "batches", "bytes", "markers"):
            row[name] += count[name]
        for codec, batches in count["codecs"].items():
            row["codecs"][codec] = row["codecs"].get(codec, 0) + batches
        for name, choose in (("firstTimestamp", min), ("lastTimestamp", max)):
            known = [each for each in (row[name], count[name]) if each is not None]
            row[name] = choose(known, default=None)
    return rows


def _no_topic(topic: str) -> Row:
    zeros = dict.fromkeys(("partitions", "records", "batches", "bytes", "markers", "largest"), 0)
    return {"topic": topic, **zeros, "codecs": {}, **_TIMES}


def facts_as_rows(facts: Facts, findings: Sequence[Finding]) -> Iterator[Row]:
    """Yield all facts as rows of plain values; ``kind`` says of what one is."""
    yield {"kind": "summary", **summary_of(facts, findings)}
    yield from (each.row() for each in findings)
    yield from ({"kind": "warning", "text": text} for text in facts.warnings)
    for kind, rows in {
        "topic": facts.topics,
        "partition": facts.partitions,
        "stats": facts.counts,
        "group": facts.groups,
        "reader": facts.readers,
        "openTransaction": facts.open_transactions,
        "disk": facts.disks,
        "writer": facts.writers,
    }.items():
        yield from ({"kind": kind, **row} for row in rows)
    yield from rows_of(facts.measured)


# ----------------------------------------------------------------------------------------------
# A report as text, for a terminal.


def summary_line(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return what there is, in one line."""
    found = summary_of(facts, findings)
    parts = [
        *_counted(found, "topic", "partition", "record"),
        shown_size(found["bytes"]),
        *_counted(found, "group", "problem"),
    ]
    return ", ".join(parts)


def _counted(found: Row, *names: str) -> Iterator[str]:
    yield from (many(found[f"{name}s"], name) for name in names if found[f"{name}s"] is not None)


def topic_table(facts: Facts) -> list[Row]:
    """Return the rows of a table of topics."""
    left_out = {"batches", "markers", "largest"}
    return [{name: row[name] for name in row if name not in left_out} for row in topic_rows(facts)]


def reader_table(facts: Facts) -> list[Row]:
    """Return the rows of a table of positions."""
    fields = ("topic", "partition", "offset", "end", "lag", "bytes", "behindMs")
    rows = [*({"reader": row["group"], **row} for row in facts.groups), *facts.readers]
    return [{name: row[name] for name in ("reader", *fields)} for row in rows]


def finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield what is wrong and what to do."""
    for each in findings:
        kind = "problem" if each.is_problem else "note"
        for text in each.texts:
            yield f"{kind}: {each.where}: {text}"
        yield f"  {each.advice}"
        yield from (f"    {line}" for line in each.commands)


# ----------------------------------------------------------------------------------------------
# What has changed since an earlier report, whose page keeps its figures.


_KEPT: Final = re.compile(r'<data class="figures" value="(.*?)"')


def figures_of(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return what a later report is compared with: figures by their names, as JSON."""
    found: dict[str, int] = {"problems": sum(each.is_problem for each in findings)}
    for row in topic_rows(facts):
        if not is_internal(row["topic"]):
            for name in ("partitions", "records", "bytes"):
                if row[name] is not None:
                    found[f"topic {row['topic']}: {name}"] = row[name]
    for row in reader_table(facts):
        if row["lag"] is not None:
            name = f"{row['reader']}: offsets behind"
            found[name] = found.get(name, 0) + row["lag"]
    for row in facts.disks:
        found[f"{row['paths'][0]}: bytes free"] = row["freeBytes"]
    return json.dumps({"madeAt": facts.made_at, "figures": found})


def read_figures(path: Path) -> dict[str, Any]:
    """Read what :func:`figures_of` gave for an earlier page.

    Raises:
        OptionError: there is none, or it is no page with figures.
    """
    try:
        kept = _KEPT.search(path.read_text(encoding="utf-8"))
        found: dict[str, Any] = json.loads(unescape(kept[1])) if kept else {}
    except OSError as error:
        raise OptionError(f"--compare cannot be read: {path}: {error.strerror}") from None
    except ValueError:
        found = {}
    if not isinstance(found.get("figures"), dict):
        raise OptionError(
            f"--compare {path} is no page of kafkalog report --html, or one of an older version"
        )
    return found


def changes_since(earlier: Mapping[str, Any], now: str) -> list[Row]:
    """Return what differs between an earlier report's figures and those of now."""
    before, after = earlier["figures"], json.loads(now)["figures"]
    return [
        {"what": name, "before": before.get(name), "now": after.get(name)}
        for name in [*after, *(each for each in before if each not in after)]
        if before.get(name) != after.get(name)
    ]
