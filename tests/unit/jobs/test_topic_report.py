"""The table of a topic that the demo ends with."""

from __future__ import annotations

from rich.console import Console

from kafkalog.jobs.demo.queries import PartitionReport, render


def test_a_topic_is_shown_in_units_of_people() -> None:
    report = PartitionReport(
        partition=3,
        records=145_271,
        segments=12,
        size_bytes=11_628_439,
        payload_bytes=46_513_756,
        end_offset=145_271,
        copied_to=145_270,
    )
    console = Console(width=100)
    with console.capture() as shown:
        console.print(render("flights", [report]))
    row = shown.get().splitlines()[4]
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells == ["3", "145,271", "12", "11.1 MiB", "4.0 : 1", "145,271", "1"]
