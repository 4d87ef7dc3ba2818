"""``kafkalog sql``: topics are tables of DuckDB, and what a query asks for decides what is read."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from threading import Timer
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.corpus import UnpackedCase
from tests.support.counted_reads import counted_reads
from tests.support.distributions import ROOT
from typer.testing import CliRunner

import kafkalog
from kafkalog.errors import CorruptRecordError
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.sql import SqlError, SqlPrompt, SqlSession, history_file, hull_of, offset_value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STAMP = 1_700_000_000_000  # 2023-11-14T22:13:20Z


def call(*words: object, data: str | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["sql", *map(str, words)], input=data)
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a topic ``t`` of two partitions with 40 batches of a record, and a topic ``a.b``."""
    folder = tmp_path_factory.mktemp("log")
    for number in range(20):
        table = pa.table(
            {
                "key": pa.array([b"\xff", f"k{number}".encode()]),
                "value": pa.array([bytes([65 + number]) * 20_000, b"v"]),
                "partition": pa.array([0, 1], pa.int32()),
                "timestamp": pa.array([STAMP + 1000 * number] * 2, pa.timestamp("ms")),
            }
        )
        kafkalog.append(folder, "t", table, options={"numPartitions": "2"})
    kafkalog.append(folder, "a.b", pa.table({"value": ["x"]}))
    return folder


@pytest.fixture
def session(log: Path) -> Iterator[SqlSession]:
    with SqlSession([str(log)], {}) as session:
        yield session


def rows(session: SqlSession, statement: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in session.run(statement) for row in batch.to_pylist()]


def test_a_table_on_a_terminal_and_an_object_a_line_with_json(log: Path) -> None:
    query = 'select partition, count(*) n, max("offset") last from t group by 1 order by 1'
    code, text = call(log, query)
    assert (code, text.split()) == (0, ["partition", "n", "last", "0", "20", "19", "1", "20", "19"])
    code, text = call(log, query, "--json")
    assert (code, [json.loads(line) for line in text.splitlines()]) == (
        0,
        [{"partition": n, "n": 20, "last": 19} for n in (0, 1)],
    )
    code, text = call(log, "--json", data='select value from "a.b"; select 1 one')
    assert (code, text.splitlines()) == (0, ['{"value": "x"}', '{"one": 1}'])


def test_each_column_is_shown_though_several_have_one_name(log: Path) -> None:
    """As in each join of two topics."""
    query = (
        'select l."offset", r."offset", 3 offset_1 from t l join "a.b" r on l."offset" = 1 limit 1'
    )
    assert call(log, query, "--json") == (0, '{"offset": 1, "offset_1": 0, "offset_1_1": 3}\n')
    assert call(log, query)[1].split() == ["offset", "offset_1", "offset_1_1", "1", "0", "3"]


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ("73 second", "00:01:13"),
        ("1 day", "1 day"),
        ("0 day", "00:00:00"),
        ("14 month", "1 year 2 months"),
        ("(-90) minute", "-01:30:00"),
        ("1500 millisecond", "00:00:01.5"),
    ],
)
def test_an_interval_is_shown_as_duckdb_shows_it(log: Path, interval: str, expected: str) -> None:
    query = f"select interval {interval} age, [interval {interval}] ages, age::text text"
    _, text = call(log, query, "--json")
    assert json.loads(text) == {"age": expected, "ages": [expected], "text": expected}


def test_names_that_differ_in_case_alone_each_have_a_table_with_a_number(tmp_path: Path) -> None:
    for topic, value in (("weird", "low"), ("Weird", "high"), ("batches", "of"), ("t", "one")):
        kafkalog.append(tmp_path, topic, pa.table({"value": [value]}))
    with SqlSession([str(tmp_path)], {}) as session:
        assert session.tables == ["Weird#1", "batches#1", "t", "weird#2", "batches#2"]
        for table, value in (("Weird#1", "high"), ("weird#2", "low"), ("batches#1", "of")):
            assert rows(session, f'select value_text from "{table}"') == [(value,)]
        assert len(rows(session, 'select crc from "batches#2"')) == 4
        for name in ("weird", "WEIRD", '"Weird"'):
            with pytest.raises(SqlError, match='Tables of that name are "Weird#1" and "weird#2"'):
                rows(session, f"select * from {name}")
    code, text = call(tmp_path, "select value_text from t")
    assert (code, text.split()[-1]) == (0, "one")


def test_a_name_of_no_table_is_not_looked_for_in_the_program(session: SqlSession) -> None:
    with pytest.raises(
        SqlError, match=r"Table with name statement does not exist.+Tables: a\.b, t"
    ):
        rows(session, "select * from statement")


def test_a_column_called_file_is_shown_whole_unless_it_is_of_batches(log: Path) -> None:
    code, text = call(log, "select '/x/y/z/w' as file")
    assert (code, text.split()) == (0, ["file", "/x/y/z/w"])
    code, text = call(log, "select 5 as file, 'abc' as \"maxTimestamp\"")
    assert (code, text.split()) == (0, ["file", "maxTimestamp", "5", "abc"])
    code, text = call(log, "select file from batches where topic = 'a.b'")
    assert (code, text.split()) == (0, ["file", f"a.b-0/{0:020d}.log"])


def test_bytes_that_are_no_text_have_no_text(session: SqlSession) -> None:
    query = "select key, key_text, value_text from t where record_offset = 0 order by partition"
    assert rows(session, query) == [(b"\xff", None, "A" * 20_000), (b"k0", "k0", "v")]


@pytest.mark.parametrize(
    ("condition", "read", "left"),
    [
        ("partition = 1", 20, 20),
        ("partition in (1, 7)", 20, 20),
        ("record_offset >= 18", 4, 4),
        ('"offset" between 5 and 6 or "offset" = 8', 8, 6),
        ("partition = 0 and record_offset < 3", 3, 3),
        ("timestamp >= '2023-11-14 22:13:38Z'", 4, 4),
        ("timestamp > now() - interval 1 hour", 0, 0),
        ("key_text = 'k3'", 40, 1),
        ("timestamp is null", None, 0),
        ("topic = 't' and value_text = 'v' and record_offset = 7", 2, 1),
    ],
)
def test_filters_decide_what_is_read(
    session: SqlSession, condition: str, read: int | None, left: int
) -> None:
    session.scans.rows = 0
    assert rows(session, f"select count(*) from t where {condition}") == [(left,)]
    assert read is None or session.scans.rows == read


def test_a_filter_saves_bytes(session: SqlSession) -> None:
    fetched = []
    for condition in ("true", "record_offset = 19 and partition = 0"):
        with counted_reads() as counted:
            rows(session, f"select max(value) from t where {condition}")
        fetched.append(counted[".log"])
    assert fetched[1] < fetched[0] / 5


def test_a_table_is_read_anew_by_each_query_and_may_be_joined_with_itself(log: Path) -> None:
    folder = log.parent / "growing"
    kafkalog.append(folder, "t", pa.table({"value": ["x"]}))
    with SqlSession([str(folder)], {}) as session:
        assert rows(session, "select count(*) from t a join t b using (record_offset)") == [(1,)]
        kafkalog.append(folder, "t", pa.table({"value": ["y"]}))
        assert rows(session, "select count(*) from t a join t b using (record_offset)") == [(2,)]


def test_batches_and_internal_topics_are_views(tmp_path: Path, session: SqlSession) -> None:
    query = "select topic, sum(count) from batches where partition = 1 group by 1"
    assert rows(session, query) == [("t", 20)]
    path = UnpackedCase("p09-groups", tmp_path).path
    with SqlSession([path], {}) as other:
        query = 'select distinct "group" from __consumer_offsets where committedOffset is not null'
        assert ("simple-0",) in rows(other, query)
        assert rows(other, "select count(*) from __transaction_state")[0][0] > 0


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("select offset from t", 'write "offset" in double quotes, or record_offset'),
        ("select nothing from t", '"nothing" not found'),
        ("choose 1", "syntax error"),
        ("select * from none", "none"),
        ("select 1/", "syntax error"),
    ],
)
def test_an_error_is_one_line(log: Path, statement: str, expected: str) -> None:
    code, text = call(log, statement)
    assert code == 2
    assert expected in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("name", ["a.b", "a-b"])
def test_a_name_that_needs_quotes_is_told_with_them(tmp_path: Path, name: str) -> None:
    kafkalog.append(tmp_path, name, pa.table({"value": ["v"]}))
    code, text = call(tmp_path, f"select * from {name} where partition = 0")
    assert (code, len(text.splitlines())) == (2, 1)
    assert f'in double quotes, "{name}"' in text
    assert call(tmp_path, f'select * from "{name}" where partition = 0')[0] == 0
    assert "in double quotes" not in call(tmp_path, f'select * frm "{name}"')[1]


def test_a_statement_is_text(log: Path) -> None:
    code, text = call(log, "select '\udcff'")
    assert (code, text.startswith("the statement has bytes that are not UTF-8")) == (2, True)


def test_each_statement_of_several_is_answered(log: Path) -> None:
    assert call(log, "select 1 as a; select 2 as b") == (0, "a\n1\n\nb\n2\n")
    assert call(log, "--json", data="select 1 as a;\nselect 2 as b;\n") == (
        0,
        '{"a": 1}\n{"b": 2}\n',
    )
    code, text = call(log, "select 1 as a; selec 2")
    assert (code, len(text.splitlines())) == (2, 1)


def test_help_is_answered_between_statements_that_are_piped(log: Path) -> None:
    code, shown = call(log, data="select 1 as a;\nhelp\nselect 2\n as b; select 3 as c\n")
    assert code == 0
    lines = [line for line in shown.splitlines() if line]
    assert [line for line in lines if "Tables:" not in line] == ["a", "1", "b", "2", "c", "3"]
    (told,) = [line for line in lines if "Tables:" in line]
    assert lines.index(told) == 2
    assert "describe t;" in told
    _, amid = call(log, data="select 1 as\nhelp\n;")
    assert amid.split() == ["help", "1"]


def test_a_table_of_batches_has_times_and_short_names(log: Path) -> None:
    query = "select file, \"baseTimestamp\" from batches where topic = 't' limit 1"
    code, text = call(log, query)
    assert (code, text.split()[2]) == (0, f"t-0/{0:020d}.log")
    assert text.split()[3].startswith("2023-11-14T22:13:")
    (row,) = map(json.loads, call(log, query, "--json")[1].splitlines())
    assert (row["file"], row["baseTimestamp"] // 100_000) == (
        str(log / "t-0" / f"{0:020d}.log"),
        STAMP // 100_000,
    )


WRITES = {
    "text": "copy (select 1 a) to '{}'",
    "dollars": "copy (select 1 a) to $a${}$a$",
    "escapes": "copy (select 1 a) to e'{}'",
    "name": 'copy (select 1 a) to "{}"',
    "expression": "copy (select 1 a) to ('{}')",
    "comment before": "copy (select 1 a) to /* here */ '{}'",
    "comment after": "copy (select 1 a) to '{}' -- was: to 'build/x.csv'",
    "address": "copy (select 1 a) to 'file://{}'",
    "variable": "set variable p='{}'; copy (select 1 a) to (getvariable('p'))",
    "prepared": "prepare q as copy (select 1 a) to $1; execute q('{}')",
    "setting": "set log_query_path='{}'; select 1",
    "profile": "pragma profiling_output='{}'; pragma enable_profiling; select 1",
    "database": "attach '{}' as d; create table d.x as select 1 a",
    "export": "export database '{}'",
    "folder": "copy (select 1 a, 2 b) to '{}' (format parquet, partition_by (a), overwrite)",
    "unlocked": "set enable_external_access=true; copy (select 1 a) to '{}'",
    "spilled": "set temp_directory='{}'; select 1",
}


@pytest.mark.parametrize("way", WRITES)
def test_no_statement_writes_among_the_files_of_a_log(tmp_path: Path, way: str) -> None:
    log, files = tmp_path / "log", tmp_path / "files"
    files.mkdir()
    kafkalog.append(log, "t", pa.table({"value": ["x"]}))
    segment = log / "t-0" / f"{0:020d}.log"
    before = {path: path.is_file() and path.read_bytes() for path in log.rglob("*")}
    for target, words in (
        (segment, ()),
        (log, ("--files", files)),
        (f"{files}/../log/t-0/{segment.name}", ("--files", files)),
    ):
        code, text = call(log, WRITES[way].format(target), *words)
        assert (code, len(text.splitlines())) == (2, 1), text
        assert {path: path.is_file() and path.read_bytes() for path in log.rglob("*")} == before


def test_statements_read_and_write_the_files_of_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, files, other = (tmp_path / name for name in ("log", "it's", "other"))
    files.mkdir()
    (tmp_path / "link").symlink_to(files)
    kafkalog.append(log, "t", pa.table({"value": ["x"]}))
    monkeypatch.chdir(files)
    for name, folder in (("a.csv", files), (files / "b.csv", files), ("./c.csv", ".")):
        target = str(name).replace("'", "''")
        copy = f"copy (select value_text v from t) to '{target}'"
        assert call(log, copy, "--files", folder)[0] == 0
    linked = tmp_path / "link"
    assert call(log, f"copy (select 1) to '{linked}/d.csv'", "--files", linked)[0] == 0
    assert sorted(path.name for path in files.iterdir()) == ["a.csv", "b.csv", "c.csv", "d.csv"]
    joined = "select count(*) n from t join 'a.csv' on v = value_text"
    code, text = call(log, joined, "--files", ".")
    assert (code, text.split()) == (0, ["n", "1"])
    assert call(log, "export database 'e'", "--files", ".") == (0, "")
    code, text = call(log, f"copy (select 1) to '{other}'", "--files", ".")
    assert (code, other.exists()) == (2, False)
    assert text.endswith("files in the folder that --files names, and no others\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it's", "link", "log"]


def test_the_folder_of_statements_files_has_no_log_in_it_or_around_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    kafkalog.append(log, "t", pa.table({"value": ["x"]}))
    for folder, said in (
        (log, "which lies in the log directory"),
        (log / "t-0", "which lies in the log directory"),
        (tmp_path, f"in which the log directory {log} lies: name a folder of its own"),
        (tmp_path / "none", "which is no folder"),
    ):
        code, text = call(log, "select 1 one", "--files", folder)
        assert (code, said in text) == (2, True), text


def test_what_does_not_fit_in_memory_is_spilled_outside_the_working_folder(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    with SqlSession([str(log)], {}) as session:
        ((spilled,),) = rows(session, "select current_setting('temp_directory') d")
        assert spilled.startswith(str(tmp_path / "tmp"))
    assert [path.name for path in tmp_path.rglob("*")] == ["tmp"]


def test_settings_of_a_session_are_fixed_and_times_are_shown_elsewhere_by_words(log: Path) -> None:
    code, text = call(log, "set timezone='Asia/Tokyo'")
    assert (code, text.endswith("Times are UTC: at time zone 'Asia/Tokyo'\n")) == (2, True)
    query = "select timestamp at time zone 'Asia/Tokyo' t from t where record_offset = 0 limit 1"
    assert "07:13:20" in call(log, query)[1]


HOSTILE = "\x1b]52;c;cm0=\x07\x1b[2J\u202e\x9b31m\nx"


@pytest.mark.parametrize(
    "statement",
    [
        "select key_text from t",
        "select cast(key_text as int) from t",
        "select key_text::timestamp from t",
        "pivot t on key_text using count(*) group by value_text",
        "select error(key_text) from t",
        "select map {{key_text: 1}} m from t",
        "select '{hostile}' as \"{hostile}\"",
        'select * from "{hostile}"',
    ],
)
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_control_characters_of_records_reach_no_terminal(
    tmp_path: Path, statement: str, words: list[str]
) -> None:
    kafkalog.append(tmp_path, "t", pa.table({"key": [HOSTILE], "value": ["1"]}))
    _, text = call(tmp_path, statement.format(hostile=HOSTILE), *words)
    assert text
    assert all(line.isprintable() for line in text.splitlines()), ascii(text)


def test_an_interrupt_ends_a_statement_amid_its_work(
    session: SqlSession,
) -> None:
    """The statement would take minutes, in threads of DuckDB that hear of no signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            rows(session, "select count(*) from range(1000000000000)")
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert rows(session, "select 1") == [(1,)]


INTERRUPTED_IMPORT = """
import enum, os, signal, sys

set_attribute = enum.EnumType.__setattr__

def interrupt_amid_import(enumeration, name, value):
    if "_duckdb" in sys.modules:
        enum.EnumType.__setattr__ = set_attribute
        os.kill(os.getpid(), signal.SIGINT)
    set_attribute(enumeration, name, value)

import kafkalog.jobs.inspection.records, kafkalog.jobs.process.running
enum.EnumType.__setattr__ = interrupt_amid_import
try:
    import kafkalog.jobs.sql
except KeyboardInterrupt:
    from kafkalog.jobs.sql import duckdb
    print(duckdb.sql("select 1").fetchall())
"""


def test_an_interrupt_amid_the_import_of_duckdb_does_not_abort_the_process() -> None:
    """DuckDB sets up its enumerations in C++, which no exception may leave."""
    words = [sys.executable, "-c", INTERRUPTED_IMPORT]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[(1,)]\n"), done.stderr


def test_damage_is_named_as_everywhere(tmp_path: Path) -> None:
    kafkalog.append(tmp_path, "t", pa.table({"value": ["x" * 100]}))
    segment = tmp_path / "t-0" / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    with SqlSession([str(tmp_path)], {}) as session, pytest.raises(CorruptRecordError):
        rows(session, "select * from t")
    code, text = call(tmp_path, "select * from t")
    assert (code, len(text.splitlines())) == (1, 1)


def test_a_statement_that_fails_leaves_the_session_as_it_was(session: SqlSession) -> None:
    with pytest.raises(SqlError):
        rows(session, "select nope from t")
    assert rows(session, 'select count(*) from "a.b"') == [(1,)]


def test_the_prompt_takes_statements_up_to_their_semicolons_and_keeps_a_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run: list[str] = []

    def take(statement: str) -> None:
        run.append(statement)
        if "bad" in statement:
            raise SqlError("no good")

    prompt = SqlPrompt(take, ["t"])
    prompt.use_rawinput = False
    prompt.stdin = io.StringIO("select 1,\n  2;\n\nbad;\nselect 3;\nquit\n")
    prompt.cmdloop()
    assert run == ["select 1,\n  2;", "bad;", "select 3;"]
    assert capsys.readouterr().err == "no good\n"
    assert history_file() == tmp_path / "kafkalog" / "sql_history"
    assert history_file().exists()


def test_the_prompt_forgets_a_statement_that_is_given_up() -> None:
    run: list[str] = []
    prompt = SqlPrompt(run.append, ["t"])
    prompt.onecmd("select 1")
    assert "..." in prompt.prompt
    prompt.give_up()
    assert "..." not in prompt.prompt
    prompt.onecmd("select 2;")
    assert run == ["select 2;"]


@pytest.mark.parametrize("begun", ["", "select 1\n"])
@pytest.mark.parametrize("word", ["exit", "quit;", "EXIT", r"\q", ".quit"])
def test_the_prompt_ends_by_the_words_of_other_prompts(
    word: str, begun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run: list[str] = []
    prompt = SqlPrompt(run.append, ["t"])
    prompt.use_rawinput = False
    prompt.stdin = io.StringIO(f"{begun}{word}\nselect 1;\n")
    prompt.cmdloop()
    assert run == []


@pytest.mark.parametrize("word", ["help", "?", r"\d", ".tables", "help;"])
def test_the_prompt_says_what_it_takes(
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run: list[str] = []
    prompt = SqlPrompt(run.append, ["t", "u"])
    prompt.use_rawinput = False
    prompt.stdin = io.StringIO(f"{word}\nselect\n{word};\n")
    prompt.cmdloop()
    assert capsys.readouterr().out.count("'describe t;' lists the columns of t.\n") == 1
    assert [each.rstrip(";") for each in run] == [f"select\n{word.rstrip(';')}"]


def test_a_column_has_the_same_bounds_as_the_filter() -> None:
    schema = pa.schema({"offset": pa.int64()})

    @settings(max_examples=25, deadline=None)
    @given(st.integers(0, 99), st.integers(0, 99), st.booleans())
    def check(low: int, high: int, either: bool) -> None:
        field = pc.field("offset")
        above, below = field >= low, field < high
        expression = (above & below) if not either else ((field == low) | (field == high))
        hull = hull_of(expression, "offset", offset_value, 1000, schema)
        passing = {low, high} if either else set(range(low, high))
        assert all(number in hull for number in passing)
        if passing:
            assert (max(0, hull.first), hull.last) == (min(passing), max(passing))

    check()


def test_the_recipes_of_the_page_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"key": ["UA", "AA", "UA"], "value": ["EWR-IAH", "JFK-MIA", "LGA-IAH"]}
    kafkalog.append(tmp_path, "flights", pa.table(rows))
    page = (ROOT / "docs" / "sql.md").read_text()
    recipes = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(recipes) == 2
    for recipe in recipes:
        exec(recipe.replace("/logs/a", str(tmp_path)), {})
        assert re.search(r"UA\W+2", capsys.readouterr().out)


def test_a_log_without_topics_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log"
    kafkalog.append(log, "t", pa.table({"value": ["x"]}))
    assert CliRunner().invoke(app, ["delete", str(log), "--topic", "t"]).exit_code == 0
    code, said = call(log, "select 1 as one")
    assert code == 2
    assert "no topic is there yet" in said
