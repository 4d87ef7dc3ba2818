"""How rows become lines: on a terminal nothing is wider than it, and no text moves its cursor."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from kafkalog.jobs.cli.output import Lines, lines_of

ROWS: list[dict[str, Any]] = [
    {
        "topic": "a",
        "partition": n,
        "empty": None,
        "codec": "lz4",
        "bytes": 2048 * n,
        "note": "x y" * n,
    }
    for n in range(3)
]


def test_piped_each_row_is_one_line_with_all_columns() -> None:
    lines = lines_of([*ROWS, {"topic": "b" * 500}], width=None)
    assert lines[0].split() == list(ROWS[0])
    assert len(lines) == 5
    assert lines[3].split() == ["a", "2", "lz4", "4.0", "KiB", "x", "yx", "y"]
    assert all(line == line.rstrip() for line in lines)


def test_a_huge_cell_pads_no_other_row_where_it_is_piped() -> None:
    rows = [{"value": text, "n": 1} for text in ("v" * 10**6, "w")]
    head, huge, small = lines_of(rows, width=None)
    assert huge == f"{'v' * 10**6}  1"
    assert len(head) <= len(small) <= 250
    assert small.split() == ["w", "1"]


def test_of_a_huge_cell_a_terminal_shows_the_beginning() -> None:
    lines = lines_of([{"value": "v" * 10**6, "n": 1}], width=80)
    assert len(lines) < 20
    assert "".join(lines).count("v") == 1000 + len("v")
    words = [word for line in lines for word in line.split()]
    assert words[-6:] == ["(999000", "letters", "more;", "--json", "shows", "all)"]


def test_a_table_that_fits_is_shown_as_it_is() -> None:
    piped = lines_of(ROWS, width=None)
    assert lines_of(ROWS, width=max(map(cell_len, piped))) == piped


def test_columns_without_a_value_go_first() -> None:
    width = max(map(cell_len, lines_of(ROWS, width=None))) - 1
    lines = lines_of(ROWS, width=width)
    assert lines[0].split() == ["topic", "partition", "codec", "bytes", "note"]
    assert len(lines) == 4


def test_long_texts_are_folded_at_spaces_and_short_columns_are_not() -> None:
    text = "the batch at position 40218 has a wrong checksum"
    rows = [{"topic": "t", "topicId": "B97LKb4NQCafnxT8-Dm3ag", "problem": text, "n": 1}]
    lines = lines_of(rows, width=60)
    assert lines[1].startswith("t      B97LKb4NQCafnxT8-Dm3ag  the batch at")
    assert " ".join(line[31:54].strip() for line in lines[1:]).startswith(text[:40])
    assert len(lines) == 3
    assert lines[1].endswith("1")


def test_what_is_the_same_in_all_rows_is_said_once() -> None:
    lines = lines_of(ROWS, width=30)
    assert lines[0] == "in all rows: topic a, codec"
    assert lines[2].split() == ["partition", "bytes", "note"]


def test_columns_that_can_be_spared_are_left_out_and_named() -> None:
    rows = [{"topic": f"topic-{n}", "crc": n * 10**9, "offset": n} for n in range(3)]
    assert lines_of(rows, width=17, spare=["crc"]) == [
        "topic    offset",
        "topic-0       0",
        "topic-1       1",
        "topic-2       2",
        "left out: crc (a",
        "wider terminal or",
        "--json shows all)",
    ]


def test_rows_that_fit_in_no_table_are_shown_as_names_and_values() -> None:
    rows = [{"topic": f"topic-{n}", "crc": n, "offset": n, "key": None} for n in range(2)]
    assert lines_of(rows, width=16) == [
        "topic   topic-0",
        "crc     0",
        "offset  0",
        "",
        "topic   topic-1",
        "crc     1",
        "offset  1",
    ]


@pytest.mark.parametrize("width", [1, 2, 7, 20, 33, 80, 131])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    rows = [{"name": "日本語" * n, "日本": "x" * 7 * n, "words": "ab cde " * n} for n in range(9)]
    for given in (rows, rows[-1:]):
        lines = lines_of(given, width=width)
        if width >= 20:
            assert max(map(cell_len, lines)) <= width
        shown = "".join("".join(lines).split())
        assert shown.count("x") >= sum(len(str(row["日本"])) for row in given)


def test_texts_are_shown_as_they_are() -> None:
    rows = [{"v": text} for text in ("[red]x[/red]", "[/]", ":smile:", "a  b", "ünï日本")]
    assert lines_of(rows, width=None)[1:] == [str(row["v"]) for row in rows]


def test_what_would_move_the_cursor_is_an_escape() -> None:
    """Records come from anywhere: one could hide or rewrite what a person reads."""
    (_, line) = lines_of([{"v": "a\x1b[2J\r\n\t\x07b\u202ec"}], width=None)
    assert line == r"a\x1b[2J\r\n\t\x07b\u202ec"
    assert list(Lines().of([{"v": "\x1b"}])) == ["v", r"\x1b"]


def test_headers_and_settings_are_shown_as_they_are_given() -> None:
    headers = [{"key": "a", "value": "1"}, {"key": "b", "value": None}, {"key": "a", "value": ""}]
    rows = [{"headers": headers, "settings": {"segment.ms": "1"}, "n": ["x", 1], "none": []}]
    assert lines_of(rows, width=None)[1].split() == [
        "a=1",
        "b=NULL",
        "a=",
        "segment.ms=1",
        "x",
        "1",
    ]


def test_no_rows_are_no_lines() -> None:
    assert lines_of([], width=None) == lines_of([], width=80) == []


def test_a_folder_of_a_partition_is_shown_by_its_log_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"topic": "t", "partition": 0, "path": str(tmp_path / "logs" / "t-0")}
    assert lines_of([row], width=None)[0].split() == ["topic", "partition", "directory"]
    assert lines_of([row], width=None)[1].split() == ["t", "0", "logs"]
    assert lines_of([{**row, "path": "/elsewhere/t-0"}], width=None)[1].split()[2] == "/elsewhere"
    assert lines_of([{**row, "path": "s3://b/t-0"}], width=None)[1].split()[2] == "s3://b"
    file = {"file": "/a/very/long/way/t-0/00000000000000000000.log"}
    assert lines_of([file], width=None)[1] == "t-0/00000000000000000000.log"
