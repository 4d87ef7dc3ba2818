"""Values of Avro, decoded by the schemas in ``_schemas``: in bulk, and one by one by fastavro.

CPU of this process alone; the ways take turns, and the best of the rounds counts. ``plain`` is the
same read without decoding.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.avro_values import written
from tests.support.logs import Row, batch_bytes, write_segment
from tests.support.registry_records import framed, schema_record, write_records

import kafkalog
from kafkalog.streaming.source import decoded

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_AT_ONCE: Final = 1000
_ROUNDS: Final = 5
_NEVER: Final = 10**9
_FOUR: Final[list[dict[str, Any]]] = [
    {"name": "id", "type": "long"},
    {"name": "carrier", "type": ["null", "string"]},
    {"name": "delay", "type": "double"},
    {"name": "dest", "type": "string"},
]
_LISTS: Final = [*_FOUR, {"name": "stops", "type": {"type": "array", "items": "string"}}]
_ADDED: Final = [*_FOUR[1:], {"name": "gate", "type": "string", "default": "none"}]
_CASES: Final = {
    "four fields": (_FOUR, _FOUR),
    "four fields, read as a later version": (_FOUR, _ADDED),
    "four fields and a list": (_LISTS, _LISTS),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.decoding", description=__doc__)
    parser.add_argument("--values", type=int, default=500_000)
    asked = parser.parse_args(argv)
    print(f"{'values a second of CPU':40} {'plain':>12} {'one by one':>12} {'in bulk':>12}")
    for name, (writer, reader) in _CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder)
            _write(log, writer, reader, asked.values)
            best = _measured(log)
        rates = "".join(f" {asked.values / seconds:12,.0f}" for seconds in best)
        print(f"{name:40}{rates}", flush=True)
    return 0


def _write(log: Path, writer: object, reader: object, count: int) -> None:
    schemas = [{"type": "record", "name": "F", "fields": each} for each in (writer, reader)]
    versions = [
        schema_record("t-value", number, number, json.dumps(each))
        for number, each in enumerate(schemas, 1)
    ]
    write_records(log, *versions)
    rows = [Row(framed(1, written(schemas[0], _value(n)))) for n in range(_AT_ONCE)]
    batches = [batch_bytes(first, rows) for first in range(0, count, _AT_ONCE)]
    write_segment(log / "t-0", 0, b"".join(batches))


def _value(n: int) -> dict[str, Any]:
    carrier = None if n % 5 == 0 else "UA"
    return {
        "id": n,
        "carrier": carrier,
        "delay": n / 4,
        "dest": f"IAH{n}",
        "stops": ["EWR"] * (n % 3),
    }


def _measured(log: Path) -> list[float]:
    """Return the CPU s of a read without decoding, one by one, and in bulk."""
    best = [float("inf")] * 3
    few = decoded.BULK_FROM
    for _ in range(_ROUNDS):
        for way, options in enumerate([{}, *2 * [{"decode.value": "avro"}]]):
            decoded.BULK_FROM = _NEVER if way == 1 else few
            before = time.process_time()
            for _batch in kafkalog.read(str(log), "t", options=options):
                pass
            best[way] = min(best[way], time.process_time() - before)
    return best


if __name__ == "__main__":
    raise SystemExit(main())
