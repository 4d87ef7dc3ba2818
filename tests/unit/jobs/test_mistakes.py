"""Common mistakes at the command line: each is answered by one sentence, and by nothing else.

tests/data/mistakes.md has them, word for word. A test that fails names the line to put in.
"""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import kafkalog
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.process.running import run

PAGE = Path(__file__).parents[2] / "data" / "mistakes.md"

MISTAKES = [
    # a command or an option that there is not, or lacks something
    ("topcs LOG", "No such command 'topcs'"),
    ("read LOG", "Did you mean 'consume'"),
    ("tail LOG", "Did you mean 'consume --follow'"),
    ("ls LOG", "Did you mean 'topic list'"),
    ("archive LOG", "Did you mean 'run archive'"),
    ("group rest LOG", "Did you mean 'reset'"),
    ("topic list", "Missing argument 'PATH"),
    ("topic list LOG --jsn", "No such option: --jsn"),
    ("dump LOG", "say which topic: --topic"),
    ("dump nowhere", "nowhere does not exist"),
    ("consume LOG u", "Did you mean '--topic u'"),
    ("topic delete LOG u", "Did you mean '--topic u'"),
    ("run maintain LOG u", "Did you mean '--topic u'"),
    ("run maintain nowhere", "no such folder"),
    ("dump LOG/t-0/00000000000000000000.log --records", "log/t-0 --records"),
    ("dump LOG --topic", "requires an argument"),
    ("dump LOG --topic t --count none", "expected an integer"),
    ("dump LOG --topic t --start -1", "greater than or equal to 0"),
    ("get LOG --topic t", "say which keys"),
    ("find LOG", "say what to look for"),
    ("lag LOG", "no consumer group has committed a position here"),
    ("lag LOG --checkpoint EMPTY", "is no checkpoint of a streaming query"),
    ("lag LOG --checkpoint nowhere", "there is no such folder"),
    # folders
    ("topic list nowhere", "nowhere"),
    ("topic list LOG/t-0/00000000000000000000.log", "00000000000000000000.log"),
    ("topic list EMPTY", "is empty: no sink and no broker has written there"),
    ("topic list ABOVE", "Log directories in it: "),
    ("get LOG --topic t --key xy --hex", "such as 6b31"),
    ("produce LOG --topic __t", "--set allowInternalTopics=true"),
    ("node reassign LOG --plan nowhere", "--plan names nowhere"),
    ("get LOG --topic t --key k --prefix p", "say which keys"),
    ("verify OTHER", "is no log directory"),
    # topics, partitions, offsets, times
    ("dump LOG --topic T", "Did you mean t?"),
    ("dump LOG --topic T --records", "did you mean t?"),
    ("topic alter LOG --topic T --partitions 2", "did you mean t?"),
    ('topic trim LOG --offsets \'{"T":{"0":1}}\'', "Did you mean t?"),
    ("topic describe LOG --topic u", "Topics there: t"),
    ("topic delete LOG --topic u", "Topics: t"),
    ("run maintain LOG -t T", "did you mean t?"),
    ("get LOG --topic u --key k", "Topics there: t"),
    ("get LOG --topic t --partition 3 --key k", "Partitions of t there: 0"),
    ("salvage LOG u-0", "Topics there: t"),
    ("compact LOG --topic t --partition 3", "but 0"),
    ("group reset LOG --group g --topic u --to earliest", "Topics there: t"),
    ("dump LOG --topic t --partition 3", "Partitions of t there: 0"),
    ("dump LOG --topic t --since 1700000000", "looks like seconds since 1970"),
    ("consume LOG -t t --since yesterdy", "expected a time such as"),
    ("dump LOG --topic t --since 20231114", "write 2023-11-14"),
    ("group reset LOG --group g --topic t --to 5", '--offsets \'{"t":{"0":5}}\''),
    ("group reset LOG --group g --topic t --to beginning", "did you mean earliest?"),
    ("dump LOG --topic t --set startingOffsets=beginning --records", "did you mean earliest?"),
    ("consume LOG -t t --since '7 days'", "write 7d"),
    ("run maintain LOG --every '7 days'", "or 7d"),
    ("topic create LOG --topic u --config retention.ms=1w", "1w is 604800000"),
    ("produce LOG --topic u --set retention.bytes=1gib", "1gib is 1073741824"),
    ("produce LOG --topic u --set bootstrap.servers=x", "path names the log directories"),
    ("dump LOG --topic t --format %q", "--format has %q"),
    ("report LOG --html LOG/t-0/report.html", "which lies in the log directory"),
    ("report LOG --html ABOVE", "which is a folder"),
    ("report LOG --html -", "writes a file, no standard output"),
    ("plot LOG --png -", "writes a file, no standard output"),
    ("dump LOG --topic t --parquet -", "writes a file, no standard output"),
    ("dump LOG --topic t --follow --end 3", "--follow has no end"),
    ("dump LOG --topic t --set startingOffset=earliest --records", "startingOffset"),
    ("dump LOG --topic t --json --format %s", "--format and --json"),
    ("lag LOG --offsets t:5", "t:5"),
    ("consume LOG -t t -o first", "expected an offset"),
    ("consume LOG -t t -o 3 --group g", "--group or --offset"),
    ("consume LOG -t t -o latest", "goes with --follow"),
    ("topic trim LOG -t t", "either --topic and --offset, or --offsets"),
    ("topic trim LOG -t t -p 3 -o 1", "Partitions of t there: 0"),
    ("node vote LOG", "either --replace or --add"),
    ("topic lst LOG", "Did you mean 'list'"),
    ("topic list LOG --json --output csv", "--json and --output"),
    ("produce LOG --topic a/b", "a/b"),
    ("produce LOG --topic t --set compression.type=zip", "compression.type"),
    ("produce LOG --topic t --header h", "NAME=VALUE"),
    ("topic alter LOG --topic t --config retention=5", "retention"),
    ("topic create LOG --topic t --partitions 1", "t"),
    # what would be done to another thing than was meant
    ("get LOG --topic t --key a --key b", "given twice"),
    ("get LOG --topic t --from z --to a", "leaves nothing"),
    ("dump LOG --topic t --set subscribe=u --records", "--topic says what is read"),
    ("find LOG --key a --ignore-case", "--ignore-case"),
    ("produce LOG --topic t lines.txt", "< FILE"),
    ("topic create LOG new --topic u", "mkdir"),
    ("topic create LOG --topic u --replication-factor 2", "semicolons"),
    ("topic alter LOG --topic t --config retention.ms=5 --delete-config retention.ms", "both"),
    ("topic alter LOG --topic t", "say what to change"),
    ("topic alter LOG --topic t --delete-config retention", "no topic setting"),
    ('topic trim LOG --offsets \'{"t":{"0":1,"0":2}}\'', "twice"),
    ("topic trim LOG --offsets '{}'", "names no partition"),
    ('lag LOG --offsets \'{"t":{"0":1,"0":2}}\'', "twice"),
    ("topic create LOG --topic u --config retention.ms=5 --config retention.ms=6", "twice"),
    ("broker takeover EMPTY", "is empty"),
    ("broker takeover OTHER", "is no log directory"),
    ("broker takeover ABOVE", "Log directories in it: "),
    ("dump LOG --topic t --parquet LOG/t-0/t.parquet", "which lies in the log directory"),
    ("plot LOG --png LOG/plot.png", "which lies in the log directory"),
    ("plot LOG --png OTHER/photo.png", "is no PNG"),
    ("topic list LOG,LOG", "listed twice"),
    # SQL
    ('sql LOG "select offset from t"', "record_offset"),
    ('sql LOG "select * from flights"', "Tables: t, batches"),
    ("sql nowhere", "nowhere"),
    ("sql LOG t", "a statement in quotes"),
    ("sql LOG describe;", "a statement in quotes"),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Give a log directory with a topic ``t``, an empty folder, the one above, one of others."""
    above = tmp_path_factory.mktemp("above")
    kafkalog.append(above / "log", "t", pa.table({"value": ["a", "b"]}))
    empty, other = tmp_path_factory.mktemp("empty"), tmp_path_factory.mktemp("other")
    (other / "photo.png").touch()
    return {"LOG": above / "log", "ABOVE": above, "EMPTY": empty, "OTHER": other}


@pytest.mark.parametrize(("line", "expected"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_answered_by_one_sentence(
    places: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    line: str,
    expected: str,
) -> None:
    typed = line
    for name, path in places.items():
        line = line.replace(name, str(path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["kafkalog", *shlex.split(line)])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\n")))
    with pytest.raises(SystemExit) as ended:
        run(app)
    out, err = capfd.readouterr()
    assert ended.value.code == 2
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert expected in err
    assert list(tmp_path.iterdir()) == []
    assert page_row(typed, err, {**places, "": tmp_path}) in PAGE.read_text().splitlines()


def page_row(typed: str, said: str, places: dict[str, Path]) -> str:
    """Return the line of the list: folders have the names that stand for them."""
    for name, path in places.items():
        said = said.replace(path.as_uri(), name).replace(
            f"{path}/" if not name else str(path), name
        )
    cells = (f"kafkalog {typed}", said.strip())
    quoted = (f"`` {cell} ``" if "`" in cell else f"`{cell}`" for cell in cells)
    return "| {} | {} |".format(*quoted)


def test_the_list_has_each_mistake_once_and_nothing_else() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    typed = [row.split("` | `")[0].removeprefix("| `kafkalog ") for row in rows]
    assert typed == [line for line, _ in MISTAKES]
    assert len(set(typed)) == len(typed) >= 30
