"""Three nodes, two writers, a compactor and a reader, to which everything happens at random.

Each writer writes one key again and again. Compaction takes its records away, and no others.

Each node is a folder in a small file system in memory of its own, where that can be mounted. Nodes
are moved away, brought back, as older copies too, made read-only, and filled up; writers are killed
and stopped. A writer notes what was acknowledged. Whatever failed it writes again under the same
version, as a query does.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
from tests.support.replicated import newest_state, path_of, values

import kafkalog
from kafkalog.errors import KafkaLogError
from kafkalog.model import TopicSelection
from kafkalog.streaming.admin.compaction import Wanted, compact

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WRITERS", "ReplicaChaos", "rows_of"]

WRITERS: Final = 2
MEGABYTES: Final = 64
OPTIONS: Final = {
    "numPartitions": "2",
    "segment.bytes": "6000",
    "cleanup.policy": "compact",
    "min.insync.replicas": "2",
    "max.block.ms": "3000",
}


_AGAIN: Final = "~"


def rows_of(writer: int, version: int) -> list[str]:
    """Return the rows that a writer writes under a version."""
    return [f"{writer}:{version}:{n}" for n in range((version * 7 + writer) % 19 + 1)]


def _where(error: BaseException) -> str:
    """Return where an error comes from: its own frames, and those of its first cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)[-12:]
    return " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in reversed(frames))


class ReplicaChaos:
    """The nodes in ``folder``, and what happens to them; ``done`` counts it."""

    def __init__(self, folder: Path, seed: str) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self._children: dict[str, int] = {}
        self._stopped: str | None = None
        self._trouble: dict[int, str] = {}
        self._copies: dict[int, Path] = {}
        self.nodes = [folder / f"disk{n}" / "log" for n in range(3)]
        self.done: Counter[str] = Counter()

    def __enter__(self) -> Self:
        """Mount the disks, and start whoever lives on them."""
        self._folder.mkdir(exist_ok=True)
        for node in self.nodes:
            node.parent.mkdir()
            self._mount("-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(node.parent))
            node.mkdir()
        self._append_one("first")
        for writer in range(WRITERS):
            self._start_writer(writer)
        self._start_compactor()
        return self

    def _append_one(self, row: str) -> None:
        kafkalog.append(path_of(self.nodes), "u", pa.table({"value": [row]}))

    def __exit__(self, *_: object) -> None:
        """End all processes, and unmount the disks."""
        self._end_children()
        for node in self.nodes:
            if os.path.ismount(node.parent):
                subprocess.run(["umount", "-l", str(node.parent)], check=False)

    def _mount(self, *arguments: str) -> bool:
        done = subprocess.run(["mount", *arguments], check=False, capture_output=True)
        return done.returncode == 0

    # Who lives there

    def _fork(self, name: str, action: Callable[[], None]) -> None:
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                action()
            os._exit(0)
        self._children[name] = child

    def _start_writer(self, writer: int) -> None:
        self._fork(f"writer {writer}", lambda: self._write_on(writer))

    def _write_on(self, writer: int) -> None:
        version = self.acknowledged(writer) + 1
        noted = os.open(self._acks(writer), os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        while True:
            try:
                self.write(writer, version)
            except Exception as error:  # noqa: BLE001 - it tries again, whatever it was
                self._note("errors", f"{type(error).__name__}: {str(error)[:300]} {_where(error)}")
                time.sleep(0.05)
                continue
            os.write(noted, f"{version}\n".encode())
            version += 1

    def write(self, writer: int, version: int) -> None:
        """Write the rows of a version: again is once."""
        rows = rows_of(writer, version)
        keys, many = [*rows, f"again {writer}"], _AGAIN * 300
        kafkalog.append(
            path_of(self.nodes),
            "t",
            pa.table({"key": keys, "value": [*rows, many]}),
            transactional_id=f"writer-{writer}",
            version=version,
            options=OPTIONS,
        )

    def acknowledged(self, writer: int) -> int:
        """Return the last version that was acknowledged, -1 for none."""
        with suppress(FileNotFoundError):
            return int(["-1", *self._acks(writer).read_text().split()][-1])
        return -1

    def _acks(self, writer: int) -> Path:
        return self._folder / f"acks-{writer}"

    def _note(self, name: str, text: str) -> None:
        with (self._folder / name).open("a") as file:
            file.write(text.replace("\n", " ") + "\n")

    def notes(self, name: str) -> list[str]:
        """Return what was noted under a name."""
        with suppress(FileNotFoundError):
            return (self._folder / name).read_text().splitlines()
        return []

    def _start_compactor(self) -> None:
        self._fork("compactor", self._compact_on)

    def _compact_on(self) -> None:
        wanted = Wanted(topics=TopicSelection.of("t"), forces=True, wait_ms=3000)
        while True:
            try:
                done = compact([path_of(self.nodes)], wanted)
            except Exception as error:  # noqa: BLE001 - it tries again, whatever it was
                self._note("not compacted", f"{type(error).__name__}: {str(error)[:300]}")
            else:
                for each in done.partitions:
                    if each.bytes < each.bytes_before:
                        self._note("compacted", f"{each.topic_partition} to {each.clean_to}")
                for problem in done.problems:
                    self._note("not compacted", f"problem: {problem[:300]}")
            time.sleep(0.1)

    def start_reader(self) -> None:
        """Read again and again; what was seen once has to stay."""
        self._fork("reader", self._read_on)

    def _read_on(self) -> None:
        seen: set[str] = set()
        while True:
            try:
                found = self.rows()
            except KafkaLogError as error:
                self._note("not read", f"{type(error).__name__}: {str(error)[:200]}")
            except Exception as error:  # noqa: BLE001 - to be looked at afterwards
                self._note("reader failed", f"{type(error).__name__}: {str(error)[:300]}")
            else:
                if len(found) > len({*found}):
                    self._note("twice", str(Counter(found).most_common(3)))
                if gone := seen - {*found}:
                    self._note("gone", f"{len(gone)} rows: {sorted(gone)[:5]}")
                seen |= {*found}
                self._note("reads", str(len(found)))
            time.sleep(0.02)

    def rows(self) -> list[str]:
        """Return all rows that stay, sorted."""
        return [row for row in values(self.nodes) if not row.startswith(_AGAIN)]

    # What happens

    def run(self, seconds: float) -> None:
        """Let things happen for so long, and then mend everything."""
        self.start_reader()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            name, action = self._random.choice(self._possible())
            action()
            self.done[name] += 1
            time.sleep(self._random.uniform(0.05, 0.7))
        self._end_children()
        for node in list(self._trouble):
            self._mend(node)

    def _possible(self) -> list[tuple[str, Callable[[], None]]]:
        choice = self._random.choice
        writer = choice(range(WRITERS))
        found: list[tuple[str, Callable[[], None]]] = [
            ("writer killed", lambda: self._kill(writer)),
            ("writer stopped", lambda: self._stop(writer)),
            ("compactor killed", self._kill_compactor),
        ]
        if len(self._trouble) < self._random.choice([1, 1, 1, 2]):
            node = choice([n for n in range(3) if n not in self._trouble])
            found += [
                ("moved away", lambda: self._move_away(node)),
                ("moved away", lambda: self._move_away(node)),
                ("filled up", lambda: self._fill(node)),
                ("read-only", lambda: self._remount(node, "ro")),
            ]
        if self._trouble:
            mended = choice(list(self._trouble))
            found += [("mended", lambda: self._mend(mended))] * 3
            is_away = self._trouble[mended] == "moved away"
            if is_away and mended in self._copies and self._others_have_all(mended):
                found += [("an old copy came", lambda: self._put_copy(mended))] * 3
        return found

    def _kill(self, writer: int) -> None:
        self._end(f"writer {writer}")
        self._start_writer(writer)

    def _kill_compactor(self) -> None:
        self._end("compactor")
        self._start_compactor()

    def _stop(self, writer: int) -> None:
        child = self._children[f"writer {writer}"]
        os.kill(child, signal.SIGSTOP)
        time.sleep(self._random.uniform(0.1, 1.0))
        os.kill(child, signal.SIGCONT)

    def _away(self, node: int) -> Path:
        return self.nodes[node].with_name("away")

    def _move_away(self, node: int) -> None:
        self.nodes[node].rename(self._away(node))
        self._trouble[node] = "moved away"
        if self._random.random() < 0.5:
            time.sleep(0.3)  # who has files open there comes to an end
            copy = self._folder / f"copy{node}"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self._away(node), copy)
            self._copies[node] = copy

    def _others_have_all(self, node: int) -> bool:
        """Whether all replicas on the other nodes are in sync, by a majority of the nodes."""
        others = [n for n in range(3) if n != node]
        if any(n in self._trouble for n in others):
            return False
        state = newest_state([self.nodes[n] for n in others])
        return all(
            {*others} == {*each.isr}
            for topic in state.topics.values()
            for each in topic.replicas.values()
        )

    def _put_copy(self, node: int) -> None:
        shutil.rmtree(self._away(node))
        shutil.copytree(self._copies.pop(node), self.nodes[node])
        self._trouble.pop(node)

    def _fill(self, node: int) -> None:
        if not os.path.ismount(self.nodes[node].parent):
            return
        self._trouble[node] = "filled up"
        with suppress(OSError), (self.nodes[node].parent / "ballast").open("wb") as ballast:
            while True:
                ballast.write(bytes(4096))
                ballast.flush()

    def _remount(self, node: int, how: str) -> None:
        disk = str(self.nodes[node].parent)
        for _ in range(50):
            if os.path.ismount(disk) and self._mount("-o", f"remount,{how}", disk):
                self._trouble[node] = "read-only"
                return
            time.sleep(0.01)  # files are open for writing there

    def _mend(self, node: int) -> None:
        trouble = self._trouble.pop(node)
        if trouble == "moved away":
            self._away(node).rename(self.nodes[node])
        elif trouble == "filled up":
            (self.nodes[node].parent / "ballast").unlink()
        else:
            self._remount(node, "rw")
            self._trouble.pop(node)

    def _end_children(self) -> None:
        for name in list(self._children):
            self._end(name)

    def _end(self, name: str) -> None:
        child = self._children.pop(name)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    # Afterwards

    def settle(self) -> None:
        """Let each writer end what it began, and write until all replicas are in sync again."""
        for writer in range(WRITERS):
            self.write(writer, self.acknowledged(writer) + 1)
        for n in range(3):
            self._append_one(str(n))

    def without(self, node: int) -> list[str]:
        """Return what can be read while a node is away."""
        self.nodes[node].rename(self._away(node))
        try:
            return self.rows()
        finally:
            self._away(node).rename(self.nodes[node])
