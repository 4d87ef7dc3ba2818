"""Nodes vanish, fill up and come back old, and writers are killed: each row is there once.

CI does so for ten seconds; ``make replicas`` for ten minutes.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.replica_chaos import WRITERS, ReplicaChaos, rows_of
from tests.support.replicated import check_clean, check_equal, check_in_sync

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.crash

SECONDS: Final = float(os.environ.get("KAFKALOG_REPLICAS_SECONDS", "10"))
SEED: Final = os.environ.get("KAFKALOG_REPLICAS_SEED", "replicas")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory where there is one."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="chaos-") as name:
        yield Path(name)


def test_each_acknowledged_row_is_there_once_whatever_happens_to_nodes(folder: Path) -> None:
    with ReplicaChaos(folder, SEED) as chaos:
        chaos.run(SECONDS)
        print(dict(chaos.done), len(chaos.notes("reads")), "reads")  # noqa: T201
        print(len(chaos.notes("compacted")), "logs compacted")  # noqa: T201
        for name in ("errors", "not read", "not compacted"):
            kinds = {text.split(":")[0]: text for text in chaos.notes(name)}
            print(name, len(chaos.notes(name)), *kinds.values(), sep="\n  ")  # noqa: T201
        chaos.settle()
        acknowledged = [chaos.acknowledged(writer) for writer in range(WRITERS)]
        print("acknowledged", acknowledged)  # noqa: T201
        assert min(acknowledged) >= 0
        for name in ("gone", "twice", "reader failed"):
            assert chaos.notes(name) == []
        expected = sorted(
            row
            for writer, last in enumerate(acknowledged)
            for version in range(last + 2)
            for row in rows_of(writer, version)
        )
        assert chaos.rows() == expected
        check_in_sync(chaos.nodes)
        check_equal(chaos.nodes)
        check_clean(chaos.nodes)
        for node in range(3):
            assert chaos.without(node) == expected
