"""``kafkalog dump`` shows records: which ones, and in which form."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.corpus import UnpackedCase
from tests.support.counted_reads import counted_reads
from tests.support.log_files import flip
from tests.support.logs import Row, batch_bytes, write_segment
from tests.support.sinking import Writer, rows
from typer.testing import CliRunner

import kafkalog
from kafkalog.errors import OptionError
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.cli.record_printing import RecordFormat
from kafkalog.jobs.inspection.records import producers_of_transaction
from kafkalog.streaming.options.quantities import milliseconds_of, shown_time

if TYPE_CHECKING:
    from pathlib import Path

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
STAMP = 1_700_000_000_000  # 2023-11-14T22:13:20Z


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def dumped(*words: object) -> list[Any]:
    done = CliRunner().invoke(app, ["dump", *(str(word) for word in words), "--records", "--json"])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def offsets(*words: object) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in dumped(*words)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a topic ``t`` with four records in partition 0 and one in partition 1."""
    table = pa.table(
        {
            "key": pa.array([b"a", b"b", None, b"a", b"c"]),
            "value": pa.array([b"one", None, b"\xff", b"", b"five"]),
            "partition": pa.array([0, 0, 0, 0, 1], pa.int32()),
            "timestamp": pa.array([STAMP + 1000 * n for n in range(5)], pa.timestamp("ms")),
            "headers": pa.array(
                [None, [{"key": "h", "value": b"1"}], [{"key": "h", "value": None}], [], None],
                HEADERS,
            ),
        }
    )
    kafkalog.append(tmp_path / "log", "t", table, options={"numPartitions": "2"})
    return tmp_path / "log"


def test_json_has_all_that_a_record_has(log: Path) -> None:
    assert dumped(log, "--topic", "t")[:3] == [
        {
            "topic": "t",
            "partition": 0,
            "offset": offset,
            "timestamp": STAMP + 1000 * offset,
            "key": key,
            "value": value,
            "headers": headers,
        }
        for offset, key, value, headers in [
            (0, "a", "one", []),
            (1, "b", None, [{"key": "h", "value": "1"}]),
            (2, None, "\\xff", [{"key": "h", "value": None}]),
        ]
    ]
    assert dumped(log, "--topic", "t", "--hex", "--start", 2)[0]["value"] == "ff"


def test_bytes_that_are_no_text_come_back_by_hex_alone_and_json_says_so(log: Path) -> None:
    words = ["dump", str(log), "--topic", "t", "--partition", "0", "--json"]
    done = CliRunner().invoke(app, [*words, "--records"])
    assert done.exit_code == 0
    assert done.stderr.startswith("1 record with bytes that are not UTF-8")
    assert len(done.stderr.splitlines()) == 1
    exact = CliRunner().invoke(app, [*words, "--hex"])
    assert not exact.stderr
    copy = log.parent / "copy"
    append = ["append", str(copy), "--topic", "t", "--input", "json", "--hex"]
    assert CliRunner().invoke(app, append, input=exact.stdout).exit_code == 0
    columns = ["key", "value", "headers"]
    there = [pa.table(kafkalog.read(each, "t", columns=columns)) for each in (log, copy)]
    assert there[1].slice(0, 4).equals(there[0].slice(0, 4))


def test_a_table_is_readable_on_a_terminal_and_one_line_a_record_in_a_pipe(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = call("dump", log, "--topic", "t", "--records")
    assert code == 0
    assert len(text.splitlines()) == 1 + 5
    assert text.split()[:4] == ["topic", "partition", "offset", "timestamp"]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    assert "one" in call("dump", log, "--topic", "t", "--records")[1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--partition", 1], [(1, 0)]),
        (["--start", 1, "--end", 3], [(0, 1), (0, 2)]),
        (["--since", "2023-11-14T22:13:22Z"], [(0, 2), (0, 3), (1, 0)]),
        (["--until", STAMP + 1000], [(0, 0)]),
        (["--key", "a"], [(0, 0), (0, 3)]),
        (["--key", "61", "--hex", "--count", 1], [(0, 0)]),
        (["--header", "h"], [(0, 1), (0, 2)]),
        (["--header", "h=1"], [(0, 1)]),
        (["--producer", 4711], []),
    ],
)
def test_filters_leave_what_they_name(
    log: Path, words: list[object], expected: list[tuple[int, int]]
) -> None:
    assert offsets(log, "--topic", "t", *words) == expected


def test_records_of_a_producer_and_of_a_transactional_id_are_told_apart(tmp_path: Path) -> None:
    path = UnpackedCase("p06-transactions", tmp_path).path
    of_id = offsets(path, "--topic", "txn", "--transactional-id", "txn-t0")
    (producer,) = producers_of_transaction(path, "txn-t0")
    assert of_id == offsets(path, "--topic", "txn", "--producer", producer)
    expected = 0
    for partition in (0, 1):
        words = ("--topic", "txn", "--partition", partition, "--count", 9999)
        text = call("dump", path, *words, "--json")[1]
        batches = [json.loads(line) for line in text.splitlines()]
        own = [each for each in batches if each["producerId"] == producer]
        expected += sum(each["count"] for each in own if not each["control"])
    assert 0 < len(of_id) == expected < len(offsets(path, "--topic", "txn"))
    code, text = call("dump", path, "--topic", "txn", "--transactional-id", "nobody")
    assert (code, "nobody" in text, len(text.splitlines())) == (2, True, 1)


def test_what_a_group_has_read_is_left_out(tmp_path: Path) -> None:
    path = UnpackedCase("p09-groups", tmp_path).path
    (group, *_) = json.loads(f"[{','.join(call('groups', path, '--json')[1].splitlines())}]")
    unread = offsets(path, "--topic", group["topic"], "--group", group["group"])
    words = ("--partition", group["partition"], "--start", group["offset"])
    assert [each for each in unread if each[0] == group["partition"]] == offsets(
        path, "--topic", group["topic"], *words
    )


def test_a_format_prints_what_kcat_prints(log: Path) -> None:
    template = r"%t[%p]@%o %T %K=%k %S=%s %h %%\x41\n"
    words = ["dump", str(log), "--topic", "t", "--partition", "0", "--format", template]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert done.stdout_bytes.splitlines() == [
        b"t[0]@0 1700000000000 1=a 3=one  %A",
        b"t[0]@1 1700000001000 1=b -1= h=1 %A",
        b"t[0]@2 1700000002000 -1= 1=\xff h=NULL %A",
        b"t[0]@3 1700000003000 1=a 0=  %A",
    ]
    assert RecordFormat(r"%R\0\t\r\\").line({"value": None}) == b"\xff\xff\xff\xff\0\t\r\\"
    for text in ("%x", "%"):
        with pytest.raises(OptionError, match="expected one of %s"):
            RecordFormat(text)


def test_a_parquet_file_has_all_columns_and_is_never_half_there(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    code, text = call("dump", log, "--topic", "t", "--parquet", target)
    found = pq.read_table(target)
    assert (code, text) == (0, f"{len(found)} records in {target}\n")
    assert found.equals(kafkalog.read(log, "t", options={"includeHeaders": True}).read_all())
    code, text = call("dump", log, "--topic", "t", "--parquet", target)
    assert (code, "is there already" in text) == (2, True)
    code, text = call("dump", log, "--topic", "none", "--parquet", tmp_path / "other")
    assert code == 2
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.parquet"]
    code, text = call("dump", log, "--topic", "t", "--parquet", tmp_path / "gone" / "x")
    assert (code, text) == (
        2,
        f"--parquet names {tmp_path}/gone/x, but {tmp_path}/gone is no folder\n",
    )


def test_a_dump_that_follows_shows_what_is_committed_later(log: Path) -> None:
    later = threading.Thread(
        target=lambda: kafkalog.append(log, "t", pa.table({"value": ["later", "last"]}))
    )
    later.start()
    code, text = call("dump", log, "--topic", "t", "-f", "--count", 7, "--format", r"%s\n")
    later.join()
    assert code == 0
    assert {"one", "five", "later", "last"} <= set(text.splitlines())
    assert call("dump", log, "--topic", "t", "-f", "--count", 1)[1] == f"t-0@0 {STAMP} a: one\n"


def test_a_table_that_is_cut_says_so(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t").write(0, rows(map(str, range(101))))
    text = call("dump", tmp_path, "--topic", "t", "--records")[1]
    assert "the first 100 records; --limit shows more" in text
    assert len(call("dump", tmp_path, "--topic", "t", "--format", r"%s\n")[1].splitlines()) == 101


def test_where_nothing_is_found_the_offsets_that_are_there_are_said(log: Path) -> None:
    for words in (["--start", 100, "--records"], ["--key", "x"], ["--start", 2, "--key", "c"]):
        code, text = call("dump", log, "--topic=t", *words)
        assert (code, text) == (0, "no such record is in t: t-0 is [0, 4), t-1 is [0, 1)\n")
    _, text = call("dump", log, "--topic=t", "--partition=1", "--key=x", "--json")
    assert text == "no such record is in t: t-1 is [0, 1)\n"


def test_options_that_contradict_each_other_are_refused(log: Path) -> None:
    for words, expected in [
        (["--json", "--format", "%s"], "--format and --json"),
        (["-f", "--end", 3], "--follow has no end"),
        (["-f", "--parquet", "x"], "leave --follow out"),
        (["--group", "g", "--start", 1], "--group or --start"),
        (["--partition", 7, "--records"], "t-7 is not in"),
        (["--since", 1_700_000_000], "looks like seconds"),
        (["--start", 4, "--end", 4], "--end 4 leaves nothing: --start is 4"),
        (["--since", 2, "--until", 1], "--until 1 leaves nothing: --since is 2"),
        (["--until", "yesterdy"], "expected a time such as"),
        (["--key", "x", "--hex"], "hexadecimal"),
        (["--header", "=v"], "NAME=VALUE"),
    ]:
        code, text = call("dump", log, "--topic", "t", *words)
        assert code == 2
        assert expected in text
        assert len(text.splitlines()) == 1


def test_records_before_damage_are_shown_and_the_error_after_them(tmp_path: Path) -> None:
    batches = [batch_bytes(number, [Row(f"row {number}".encode())]) for number in range(3)]
    segment = write_segment(tmp_path / "t-0", 0, b"".join(batches), index=True)
    flip(segment, len(batches[0]) + len(batches[1]) - 1)
    words = ("--topic", "t", "--set", "readUpTo=logEnd", "--format", r"%s\n")
    code, text = call("dump", tmp_path, *words)
    assert code == 1
    assert text.startswith("row 0\n")
    assert "damaged" in text.splitlines()[-1]
    assert len(text.splitlines()) == 2


def test_offsets_and_times_decide_what_is_read(tmp_path: Path) -> None:
    """Whole partitions, segments and batches that cannot hold a wanted record are not read."""
    values = [bytes([number]) * 90_000 for number in range(20)]
    batches = b"".join(
        batch_bytes(number, [Row(value, timestamp=STAMP + number)])
        for number, value in enumerate(values)
    )
    write_segment(tmp_path / "t-0", 0, batches, index=True)
    common = ("--topic", "t", "--set", "readUpTo=logEnd")
    fetched = {}
    for words in ([], ["--start", 18], ["--since", STAMP + 18, "--until", STAMP + 19]):
        with counted_reads() as counted:
            assert dumped(tmp_path, *common, *words)[-1]["offset"] >= 18
        fetched[len(words)] = counted[".log"]
    assert fetched[2] < fetched[0] / 3
    assert fetched[4] < fetched[0] / 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2023-11-14T22:13:20Z", STAMP),
        ("2023-11-14T23:13:20.5+01:00", STAMP + 500),
        ("2023-11-14", STAMP - 80_000_000 - 0),
        (str(STAMP), STAMP),
        ("1969-12-31T23:59:59", -1000),
        ("0", 0),
    ],
)
def test_a_time_is_iso_text_or_milliseconds(text: str, expected: int) -> None:
    assert milliseconds_of("--since", text) == expected


def test_a_time_is_shown_as_it_is_read() -> None:
    assert shown_time(STAMP + 7) == "2023-11-14T22:13:20.007Z"
    assert milliseconds_of("--since", shown_time(STAMP + 7)) == STAMP + 7
    assert shown_time(2**62) == str(2**62)


@pytest.mark.parametrize(
    "words", ["--isolation read_committed", "--set kafka.isolation.level=read_committed"]
)
def test_records_of_aborted_transactions_are_left_out_however_that_is_said(
    tmp_path: Path, words: str
) -> None:
    path = UnpackedCase("p06-transactions", tmp_path).path
    committed = offsets(path, "--topic", "txn", *words.split())
    assert set(committed) < set(offsets(path, "--topic", "txn"))
