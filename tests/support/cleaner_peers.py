"""A broker's cleaner and ours, each on its own copy of one log, round by round.

Our side is the core of the cleaner alone (:class:`CleanerPeers`), or what an operator runs on a
copy of a broker's directory (:class:`CommandPeers`).
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.support.cleaning import CleanableLog
from tests.support.compacted_logs import Contents, at_horizons, contents
from tests.support.compaction_load import DAY_MS, alter_settings
from tests.support.dump_log import dump_log_segments
from typer.testing import CliRunner

from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    LOG_START_OFFSET,
    META_PROPERTIES,
    PARTITION_METADATA,
    read_offset_checkpoint,
)
from kafkalog.jobs.cli.app import app
from kafkalog.model import CLUSTER_METADATA_TOPIC, TopicPartition, TopicSelection
from kafkalog.streaming.admin.compaction import Wanted, compact
from kafkalog.streaming.log.compaction.offset_map import DEFAULT_MEMORY
from kafkalog.streaming.log.segments import list_base_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.kafka import Broker

__all__ = ["BROKER", "SEGMENT_BYTES", "CleanerPeers", "CommandPeers", "Rounds"]

SEGMENT_BYTES: Final = "16384"
_SECONDS: Final = 120

BROKER: Final = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.cleaner.io.buffer.load.factor": "0.0025",
    "log.cleaner.threads": "1",
    "log.retention.check.interval.ms": "200",
}
"""Its map takes 436 keys, of 174762 slots: a log with more of them takes several passes."""

_OUR_MEMORY: Final = 24 * 485
"""Bytes; 0.9 of the slots are 436 keys."""

_HELD: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}
_NOT_COMPARED: Final = {"position", "size", "crc", "isvalid", "deleteHorizonMs"}
"""Of what the dump tool prints: what depends on whoever compressed, and on the time of a round."""


@dataclass
class Rounds:
    """What rounds came to: of each, by topic, what both sides have left."""

    ours: list[dict[str, Contents]] = field(default_factory=list)
    theirs: list[dict[str, Contents]] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)
    """When each round began, and when both had ended, ms."""
    passes: list[dict[str, int]] = field(default_factory=list)
    """How often we went through each log."""

    def compare(self, topic: str, number: int, settings: Mapping[str, str]) -> None:
        """Hold both sides of a round against each other."""
        ours, theirs = self.ours[number][topic], self.theirs[number][topic]
        retention_ms = int(settings.get("delete.retention.ms", DAY_MS))
        times = self.times[: number + 1]
        assert at_horizons(ours.batches, retention_ms, times) == at_horizons(
            theirs.batches, retention_ms, times
        )
        assert ours.records == theirs.records
        assert ours.aborted == theirs.aborted
        # Which segments are joined goes by their bytes: later also by whoever compressed them.
        if ours.is_uncompressed or (number == 0 and self.passes[0][topic] == 1):
            assert ours.segments == theirs.segments


class CleanerPeers:
    """A broker's log directory, and copies of its folders that our cleaner works on.

    ``settings`` are those of each topic while it is cleaned, under Kafka's names. Topics have to be
    created with the policy ``delete``; between rounds the broker's cleaner is held by their ratio.
    """

    def __init__(self, data: Path, ours: Path, settings: Mapping[str, Mapping[str, str]]) -> None:
        self.data = data
        self.folder = ours
        self.keyless: list[int] = []
        """Of each pass with some: the records that went because they had no key."""
        self.settings = {
            topic: {"cleanup.policy": "compact", **given} for topic, given in settings.items()
        }
        more = {"segment.bytes": SEGMENT_BYTES}
        self.logs = {
            topic: CleanableLog(ours / f"{topic}-0", given | more, memory=_OUR_MEMORY)
            for topic, given in self.settings.items()
        }

    def take(self) -> None:
        """Copy what was written since, from the segments on that were active then."""
        for topic, log in self.logs.items():
            bases = list_base_offsets(log.folder) if log.folder.exists() else [0]
            log.folder.mkdir(parents=True, exist_ok=True)
            for path in (self.data / f"{topic}-0").iterdir():
                stem = path.name.split(".")[0]
                if path.name.count(".") == 1 and stem.isdigit() and int(stem) >= bases[-1]:
                    shutil.copy2(path, log.folder)

    def go(self, broker: Broker, result: Rounds, *, expiration_ms: int = DAY_MS) -> None:
        """Clean both sides until nothing is left to do, and hold the broker's cleaner then."""
        begin = int(time.time() * 1000)
        eager = {"min.cleanable.dirty.ratio": "0"}
        alter_settings(broker, {topic: given | eager for topic, given in self.settings.items()})
        result.passes.append(self._clean_all(expiration_ms))
        self._wait()
        result.times.append((begin, int(time.time() * 1000)))
        result.ours.append({topic: contents(log.folder) for topic, log in self.logs.items()})
        result.theirs.append({topic: contents(self.data / f"{topic}-0") for topic in self.logs})
        alter_settings(broker, dict.fromkeys(self.logs, _HELD | {"retention.ms": "-1"}))

    def _clean_all(self, expiration_ms: int) -> dict[str, int]:
        """Clean our side; give by topic how often we went through its log."""
        return {topic: self._clean(log, expiration_ms) for topic, log in self.logs.items()}

    def _clean(self, log: CleanableLog, expiration_ms: int) -> int:
        passes = 0
        while True:
            log.now = int(time.time() * 1000)
            if not log.cleanable().dirty_bytes:
                return passes
            keyless = log.clean(expiration_ms=expiration_ms).keyless
            self.keyless += [keyless] if keyless else []
            passes += 1

    def _wait(self) -> None:
        """Wait until the broker has cleaned as far as we have."""
        wanted = {topic: log.clean_to for topic, log in self.logs.items() if log.clean_to}
        deadline = time.monotonic() + _SECONDS
        while True:
            said = read_offset_checkpoint(self.data, CLEANER_OFFSET)
            found = {topic: said.get(TopicPartition(topic, 0)) for topic in wanted}
            if found == wanted:
                return
            assert time.monotonic() < deadline, (found, wanted)
            time.sleep(0.1)

    def dumped(self) -> tuple[dict[str, list[dict[str, str]]], dict[str, list[dict[str, str]]]]:
        """Have Kafka's dump tool read all that is not active; give ours and theirs, by folder.

        It must find no fault in ours. In theirs it does: the cleaner of 2.8 lets an index entry for
        older messages point before the message it names. An active index is longer than its
        entries, which the tool takes for a fault too.
        """
        report = dump_log_segments(
            (
                folder / f"{base:020d}.{kind}"
                for side in (self.folder, self.data)
                for folder in (side / f"{topic}-0" for topic in self.logs)
                for base in list_base_offsets(folder)[:-1]
                for kind in ("log", "index", "timeindex")
            ),
            deep=False,
        )
        faults = [line for line in report.findings if str(self.folder) in line]
        assert not faults, report.findings
        ours: dict[str, list[dict[str, str]]] = {}
        theirs: dict[str, list[dict[str, str]]] = {}
        for path, batches in report.batches.items():
            side = ours if path.parent.parent == self.folder else theirs
            side.setdefault(path.parent.name, []).extend(
                {name: text for name, text in batch.items() if name not in _NOT_COMPARED}
                for batch in batches
            )
        return ours, theirs


class CommandPeers(CleanerPeers):
    """Our side is a copy of the directory, taken over and compacted by the commands.

    That knows the settings of topics from the cluster's metadata. Where a transaction is open, the
    takeover leaves the log alone, and the core alone cleans it. So it does where ``expiration_ms``
    is not a broker's default.
    """

    def __init__(
        self, data: Path, ours: Path, settings: Mapping[str, Mapping[str, str]], *, opened: str
    ) -> None:
        super().__init__(data, ours, settings)
        self._opened = opened

    def take(self) -> None:
        """Copy what was written since, and what else belongs to a partition."""
        super().take()
        for topic, log in self.logs.items():
            for name in (PARTITION_METADATA, "leader-epoch-checkpoint"):
                shutil.copy2(self.data / f"{topic}-0" / name, log.folder)

    def _clean_all(self, expiration_ms: int) -> dict[str, int]:
        if expiration_ms != DAY_MS:
            return super()._clean_all(expiration_ms)
        self._take_over()
        passes = self._compact_some("many-keys", memory=_OUR_MEMORY)
        passes |= self._compact_some("keyless")
        report = self._run("compact", "--config", f"segment.bytes={SEGMENT_BYTES}")
        assert report["problems"] == []
        assert [*report["leftAlone"]] == [self._opened], report
        passes = {row["topic"]: row["rounds"] for row in report["partitions"]} | passes
        said = read_offset_checkpoint(self.folder, CLEANER_OFFSET)
        for topic in passes:
            self.logs[topic].clean_to = said.get(TopicPartition(topic, 0))
        passes[self._opened] = self._clean(self.logs[self._opened], expiration_ms)
        return passes

    def _take_over(self) -> None:
        """Let the directory be a broker's, and the topics what its cluster says."""
        for name in (META_PROPERTIES, LOG_START_OFFSET):
            shutil.copy2(self.data / name, self.folder)
        metadata = f"{CLUSTER_METADATA_TOPIC}-0"
        shutil.rmtree(self.folder / metadata, ignore_errors=True)
        shutil.copytree(self.data / metadata, self.folder / metadata)
        report = self._run("takeover")
        assert [f"{self._opened}-0" in problem for problem in report["problems"]] == [True], report

    def _compact_some(self, topic: str, memory: int = DEFAULT_MEMORY) -> dict[str, int]:
        """Compact a topic as the command does, again and again while it is due."""
        wanted = Wanted(
            topics=TopicSelection.of(topic), config={"segment.bytes": SEGMENT_BYTES}, memory=memory
        )
        passes = 0
        while True:
            done = compact([str(self.folder)], wanted)
            assert done.problems == []
            (partition,) = done.partitions
            if not partition.rounds:
                return {topic: passes}
            self.keyless += [partition.keyless] if partition.keyless else []
            passes += partition.rounds

    def _run(self, command: str, *words: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, [command, str(self.folder), *words, "--json"])
        assert done.exit_code in {0, 1}, done.output
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
        return report
