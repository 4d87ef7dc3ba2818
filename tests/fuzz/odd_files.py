"""State files that are not what they were: what becomes of readers, writers and commands.

An input says which set of :mod:`tests.fuzz.sets` is taken, what is done to one or two of its files,
ours or Kafka's, and what a person or a query then does. Records themselves are never touched. What
comes of it is the committed rows, or an error of ours that names the path. Nothing else: no other
exception, and no row that is lost, there twice, or was never committed, without a word.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import typer
from crc32c import crc32c
from tests.fuzz.sets import Ground, alone, query_rows, read_rows, write_batch
from tests.fuzz.shared_sets import GROUNDS, load_plan_of, share, small_groups, stands
from tests.support.sinking import rows
from tests.support.warnings_heard import warnings_to

import kafkalog
from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.errors import KafkaLogError
from kafkalog.jobs.cli.app import app
from kafkalog.streaming.admin.backup import back_up
from kafkalog.streaming.source.offsets import from_json
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.fuzz.sets import Rows, Version

__all__ = ["DEEDS", "KINDS", "Example", "example_of", "run", "seeds"]

_SCHEMA: Final = RowSchema.of(source_schema(include_headers=False))
_NUMBERS: Final = [b"0", b"-1", b"2147483648", b"9223372036854775807", b"99999999999999999999"]
_SHOWS: Final = (".txnindex", "replication-offset-checkpoint")
_HIDES: Final = (".txnindex", "log-start-offset-checkpoint")
"""Files of Kafka's that have no checksum, and are taken at their word, as by a broker."""
_DIGITS: Final = re.compile(r"^.*/|[0-9a-f]{16,}|\d")
_SEALED: Final = re.compile(rb'\{"format":"(kafkalog\.[a-z-]+)"')


@dataclass(frozen=True)
class Change:
    """What is done to a file."""

    name: str
    kind: str
    at: int
    value: int

    def __str__(self) -> str:
        """Tell it to a person."""
        return f"{self.kind} {self.name} at {self.at} by {self.value}"


@dataclass
class Example:
    """What an input says, and what came of it."""

    ground: Ground
    deed: str
    seen: int
    """The version up to which a query had read."""
    changes: list[Change]
    told: list[str] = field(default_factory=list)

    def has_changed(self, name: str) -> bool:
        """Whether a file was changed whose name ends so."""
        return any(change.name.endswith(name) for change in self.changes)

    @property
    def is_forged(self) -> bool:
        """Whether a file says what is not so, under a checksum that is right."""
        return any(change.kind == "forge" for change in self.changes)


_HEARD: Final[list[str]] = []
"""Warnings, since something was begun."""


class _Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _HEARD.append(record.getMessage())


# What an input says


@functools.cache
def _ground(name: str, folder: Path) -> Ground:
    root = folder / "made"
    root.mkdir()
    with alone(1 + list(GROUNDS).index(name)):
        made = GROUNDS[name](root)
    root.rename(folder / f"made-{name}")
    return made


def example_of(data: bytes, folder: Path) -> Example:
    """Read an input: any bytes are one."""
    numbers = iter(data)

    def byte() -> int:
        return next(numbers, 0)

    names = list(GROUNDS)
    ground = _ground(names[byte() % len(names)], folder)
    deeds = list(DEEDS)
    deed = deeds[byte() % len(deeds)]
    seen = len(ground.versions) - 1 - byte() % (len(ground.versions) - ground.first_seen)
    sorts = list(_sorts(ground).values())
    kinds = list(KINDS)
    changes = []
    for _ in range(1 + byte() % 2):
        names = sorts[byte() % len(sorts)]
        name = names[byte() % len(names)]
        kind = kinds[byte() % len(kinds)]
        changes.append(Change(name, kind, byte() << 8 | byte(), byte()))
    if ground.are_nodes:  # of three nodes, one at a time may be other than it was
        changes = [each for each in changes if each.name[0] == changes[0].name[0]]
    return Example(ground, deed, seen, changes)


def _state_files(ground: Ground) -> list[str]:
    """List the files of all versions, but for records."""
    names = {name for version in ground.versions for name in version.files}
    return sorted(name for name in names if not name.endswith(".log"))


def _sorts(ground: Ground) -> dict[str, list[str]]:
    """Put these files together that are named alike."""
    found: dict[str, list[str]] = {}
    for name in _state_files(ground):
        found.setdefault(_DIGITS.sub("", name), []).append(name)
    return found


def seeds(folder: Path) -> Iterator[bytes]:
    """Give inputs that take each sort of file of each set; the changes, and what is done, by turns.

    The sets are made before the first one.
    """
    turn = 0
    made = [_ground(name, folder) for name in GROUNDS]
    for number, ground in enumerate(made):
        for sort in range(len(_sorts(ground))):
            deed, kind, by = turn % len(DEEDS), turn % len(KINDS), turn % 256
            yield bytes([number, deed, by, 0, sort, by, kind, 0, by, by])
            turn += 1


def _flip(_: Ground, data: bytes, change: Change) -> bytes:
    if not data:
        return data
    at = change.at % len(data)
    return data[:at] + bytes([data[at] ^ 1 << change.value % 8]) + data[at + 1 :]


def _cut(_: Ground, data: bytes, change: Change) -> bytes:
    return data[: change.at % (len(data) + 1)]


def _zero(_: Ground, data: bytes, change: Change) -> bytes:
    at = change.at % (len(data) + 1)
    return data[:at] + bytes(len(data) - at)


def _grow(_: Ground, data: bytes, change: Change) -> bytes:
    return data + bytes([change.value]) * (1 + change.at % 64)


def _old(ground: Ground, _: bytes, change: Change) -> bytes | None:
    return ground.versions[change.value % len(ground.versions)].files.get(change.name)


def _number(_: Ground, data: bytes, change: Change) -> bytes:
    """Put a number where one is."""
    found = [*re.finditer(rb"-?[0-9]+", data)]
    if not found:
        return data
    where = found[change.at % len(found)]
    return data[: where.start()] + _NUMBERS[change.value % len(_NUMBERS)] + data[where.end() :]


def _forge(ground: Ground, data: bytes, change: Change) -> bytes:
    """Change a file of ours, and give it a checksum that is right."""
    head, newline, content = data.partition(b"\n")
    found = _SEALED.match(head)
    if found is None or not newline:
        return _number(ground, data, change)
    changed = (_number if change.value % 2 else _flip)(ground, content, change)
    return re.sub(rb'"crc32c":"[0-9a-f]+"', b'"crc32c":"%08x"' % crc32c(changed), head) + (
        newline + changed
    )


KINDS: Final[Mapping[str, Callable[[Ground, bytes, Change], bytes | None]]] = {
    "flip": _flip,
    "cut": _cut,
    "old": _old,
    "zero": _zero,
    "number": _number,
    "grow": _grow,
    "forge": _forge,
    "past": _old,
}
"""``past`` is ``old`` for all state files of a folder at once."""


# What is done


@functools.cache
def _command() -> Any:
    return typer.main.get_command(app)


class _Place:
    """A set in a folder, and who works there."""

    def __init__(self, example: Example, root: Path) -> None:
        self.example = example
        self.ground = example.ground
        self.root = root
        self.paths = self.ground.paths(root)
        self.topics = list(self.ground.topics)
        self.added: dict[str, int] = {}
        """Values of what was appended since, with their topics' partitions."""
        self.may_lack: set[str] = set()
        """Topics that were deleted on purpose."""
        folders = [self.root / name for name in self.ground.logs]
        is_known = any((each / STATE_FILE).exists() for each in folders)
        is_known |= any((each / INTENT_FILE).exists() for each in folders)
        self.unfinished = set() if is_known else self.ground.unfinished
        """Values of which no file is left that says that they are not committed."""

    def _is_told(self, at: tuple[str, int]) -> bool:
        """Whether a warning named a partition, or a file that was changed."""
        names = [f"{at[0]}-{at[1]}", *(change.name for change in self.example.changes)]
        return any(name in text for text in _HEARD for name in names)

    def told(self, what: str, action: Callable[[], object]) -> object | None:
        """Do something; give what came of it, None for an error of ours."""
        _HEARD.clear()
        try:
            found = action()
        except KafkaLogError as error:
            self._error(what, str(error), type(error).__name__)
            return None
        self.example.told.append(f"{what}: {_shown(found)}")
        return found if found is not None else True

    def _error(self, what: str, text: str, kind: str) -> None:
        assert "\n" not in text, f"{what}: more than a line: {text}"
        assert self._names_a_place(text), f"{what}: names no path: {kind}: {text}"
        self.example.told.append(f"{what}: {kind}: {text.replace(str(self.root), '')}")

    def _names_a_place(self, text: str) -> bool:
        names = (str(self.root), "[KAFKA_DATA_LOSS", "query:4711", "group 'g'")
        return any(name in text for name in names)

    def command(self, *words: str) -> int:
        """Run a command as from a shell; its exit status."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                arguments = [
                    words[0],
                    *self.paths,
                    *words[1:],
                    *(["--json"] if words[0] != "backup" else []),
                ]
                code = _command().main(arguments, standalone_mode=False)
            except typer.Exit as done:
                code = done.exit_code
            except KafkaLogError as error:
                err.write(str(error))
                code = 1
        said = err.getvalue().strip()
        for line in out.getvalue().splitlines():
            problems = json.loads(line).get("problems", ())
            if isinstance(problems, list):
                said = "\n".join([said, *problems]).strip()
        if code and words[0] not in {"verify", "salvage"}:  # these two print what they find
            assert self._names_a_place(said), f"{words[0]}: names no path: {said}"
        said = said.replace(str(self.root), "")
        self.example.told.append(f"{' '.join(words)}: {code or 0} {said}")
        return int(code or 0)

    def rows(self) -> Rows:
        return read_rows(self.paths, self.topics, self.ground.reading)

    def follow(self) -> Rows:
        """Continue a query from where it was; a micro-batch or two."""
        options = self.ground.followed(self.root)
        control = StreamControl(options)
        start = from_json(json.loads(self.ground.versions[self.example.seen].ends))
        end = control.next_end(start, take_all=True)
        found: Rows = {}
        for split in control.plan(start, end):
            for batch in read_split(split, options, _SCHEMA):
                for row in batch.to_pylist():
                    place = row["topic"], row["partition"]
                    known = found.setdefault(place, {})
                    assert row["offset"] not in known
                    known[row["offset"]] = row["value"].decode()
        return found

    def look(self, *, again: bool = False) -> None:
        """See what readers are given."""
        read = self.told("read", self.rows)
        if isinstance(read, dict):
            _check("read again" if again else "read", self, read)
        if not again:
            read = self.told("follow", self.follow)
            if isinstance(read, dict):
                _check("follow", self, read, since=self.ground.versions[self.example.seen])

    def append(self) -> None:
        """Append to a topic under the next version."""
        version = self.ground.last_version + 1
        values = [f"new{version}.{n}" for n in range(2)]
        done = self.told("append", lambda: self._append(values, version))
        if done:
            self.added |= dict.fromkeys(values)  # type: ignore[arg-type]

    def _append(self, values: list[str], version: int) -> str:
        options = {"allowBrokerDirectory": "true", "numPartitions": "2", "max.block.ms": "1000"}
        outcome = kafkalog.append(
            [*self.paths],
            "t",
            rows(values, partitions=[n % 2 for n in range(len(values))]),
            transactional_id="app",
            version=version,
            options={**options, **self.ground.options},
        )
        return str(outcome)


def _shown(found: object) -> str:
    if isinstance(found, dict):
        return str(
            {
                f"{topic}-{number}": each if isinstance(each, int) else [*each]
                for (topic, number), each in sorted(found.items())
            }
        )
    return str(found)


def _append_new(place: _Place) -> None:
    place.append()


def _append_again(place: _Place) -> None:
    """The last version again, which is there."""
    ground = place.ground
    if ground.last_version < 0:
        return
    last = {
        value: at
        for at, found in ground.last.rows.items()
        for value in found.values()
        if value.startswith("b")
    }
    values = sorted(last)
    if values:
        place.told("again", lambda: place._append(values, ground.last_version))


def _query(place: _Place) -> None:
    """The last batch of the query again, and the next one."""
    ground = place.ground
    if ground.last_batch < 0:
        place.append()
        return
    for number in (ground.last_batch, ground.last_batch + 1):
        batch = query_rows(f"q{number}")
        done = place.told(
            f"batch {number}",
            functools.partial(_write, place, number, batch),
        )
        if done and number > ground.last_batch:
            place.added |= dict.fromkeys(batch.column("value").to_pylist())


def _write(place: _Place, number: int, batch: Any) -> str:
    write_batch(place.ground, place.root, number, batch, allowBrokerDirectory="true")
    return "written"


def _recover(place: _Place) -> None:
    place.command("recover", "--dry-run")
    place.command("recover")
    place.append()


def _take_over(place: _Place) -> None:
    place.command("takeover", "--dry-run")
    place.command("takeover")
    place.append()


def _hand_over(place: _Place) -> None:
    of_one = ("--cluster-id", "5L6g3nShT-eMCtK--X86sw", "--node-id", "1")
    place.command("handover", *(() if place.ground.are_nodes else of_one))


def _delete(place: _Place) -> None:
    topic = place.topics[-1]
    if len(place.topics) > 1 and not place.command("delete", "--topic", topic):
        place.may_lack.add(topic)
    place.append()


def _back_up(place: _Place) -> None:
    target = place.root / "backup"
    if place.told("backup", lambda: str(back_up(place.paths, str(target)).at_one_moment)):
        paths = place.paths
        place.paths = [str(target)] if len(paths) == 1 else sorted(map(str, target.iterdir()))
        place.look(again=True)
        place.paths = paths


def _upkeep(place: _Place) -> None:
    place.command("describe", "--topic", "t")
    place.command("retain")
    place.command("compact")
    place.command("alter", "--topic", "t", "--partitions", "3")
    place.command("salvage", "t-0")
    place.append()


def _share(place: _Place) -> None:
    """A new member of the group takes over from the dead one, and moves on."""
    if not place.ground.stands:
        place.append()
        return
    with small_groups():
        before = place.told("stands", lambda: stands(place.root))
        if isinstance(before, dict):
            _check_stands(place, before)
        place.told("plan", lambda: _plan(place))
        if place.example.is_forged:
            return
        after = place.told("share", lambda: share(place.root))
        if isinstance(after, dict) and isinstance(before, dict):
            assert after == {key: offset + 1 for key, offset in before.items()}


def _plan(place: _Place) -> str:
    """Load the plan of a micro-batch: it is one that was there, or gone."""
    plan = load_plan_of(place.root)
    known = [
        b"".join(data for name, data in version.files.items() if ".groupplan." in name)
        for version in place.ground.versions
    ]
    is_known = plan is None or any(plan.nonce.encode() in data for data in known)
    assert is_known or place.example.is_forged, f"a plan that nobody has made: {plan}"
    return str(plan)


DEEDS: Final[Mapping[str, Callable[[_Place], None]]] = {
    "append": _append_new,
    "again": _append_again,
    "query": _query,
    "recover": _recover,
    "takeover": _take_over,
    "handover": _hand_over,
    "delete": _delete,
    "upkeep": _upkeep,
    "backup": _back_up,
    "share": _share,
}


# What may come of it


def _check(what: str, place: _Place, found: Rows, *, since: Version | None = None) -> None:
    """See that rows are those that are committed."""
    example = place.example
    if example.is_forged:
        return
    due = {place: dict(each) for place, each in example.ground.last.rows.items()}
    if since is not None:
        starts = from_json(json.loads(since.ends))
        ends = {(key.topic, key.partition): offset for key, offset in starts.items()}
        due = {p: {o: v for o, v in each.items() if o >= ends.get(p, 0)} for p, each in due.items()}
    new: Counter[str] = Counter()
    for at, rows_there in found.items():
        for offset, value in rows_there.items():
            if due.get(at, {}).pop(offset, value) != value:
                raise AssertionError(f"{what}: {at} has another row at {offset}: {value}")
            if value not in example.ground.last.rows.get(at, {}).values():
                new[value] += 1
    extra = new - Counter(dict.fromkeys(place.added, 1))
    if "again" in what or any(example.has_changed(name) for name in _SHOWS):
        extra -= Counter(dict.fromkeys(example.ground.pending, 1))
    extra -= Counter(dict.fromkeys(place.unfinished, 1))
    is_old = any(change.kind in {"old", "past"} for change in example.changes)
    if is_old or any(place._is_told(at) for at in found):  # what was deleted may be back
        old = [each for version in example.ground.versions for each in version.rows.values()]
        extra -= Counter({value: 1 for each in old for value in each.values()})
    lost = {
        at: each
        for at, each in due.items()
        if each and at[0] not in place.may_lack and not place._is_told(at)
    }
    if any(example.has_changed(name) for name in _HIDES):
        lost.clear()
    unseen = sorted(place.added.keys() - new.keys()) if since is None else []
    assert not extra, f"{what}: never committed, or twice: {extra}"
    assert not lost, f"{what}: lost: {lost}"
    assert not unseen, f"{what}: appended, and not seen: {unseen}"


def _check_stands(place: _Place, found: Mapping[Any, int]) -> None:
    """See that a group stands where it was, or where it was at an earlier version."""
    example = place.example
    if example.is_forged:
        return
    is_old = any(change.kind in {"old", "past"} for change in example.changes)
    known = example.ground.stands if is_old else example.ground.stands[-1:]
    assert found in known or (is_old and not found), f"the group stands at {found}"


def run(data: bytes, folder: Path) -> Example:
    """Do what an input says, and see what comes of it."""
    example = example_of(data, folder)
    try:
        with warnings_to(_Listener(logging.WARNING)):
            _run(example, folder / "set")
    except Exception as error:
        error.add_note("\n".join([example.ground.name, *map(str, example.changes), *example.told]))
        raise
    return example


def _beside(ground: Ground, change: Change) -> list[str]:
    """List the state files in the folder of one, of all versions."""
    folder = change.name.rpartition("/")[0]
    return [name for name in _state_files(ground) if name.rpartition("/")[0] == folder]


def _apply(ground: Ground, path: Path, change: Change) -> None:
    was = path.read_bytes() if path.exists() else b""
    now = KINDS[change.kind](ground, was, change)
    if now is None:
        path.unlink(missing_ok=True)
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(now)


def _run(example: Example, root: Path) -> None:
    ground = example.ground
    ground.restore(root, ground.last)
    for change in example.changes:
        for name in _beside(ground, change) if change.kind == "past" else [change.name]:
            _apply(ground, root / name, replace(change, name=name))
    place = _Place(example, root)
    with alone(100):
        place.look()
        place.command("verify")
        DEEDS[example.deed](place)
    with alone(200):
        place.look(again=True)
