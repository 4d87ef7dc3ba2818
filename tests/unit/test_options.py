from __future__ import annotations

import logging
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pytest

from kafkalog.errors import OptionError
from kafkalog.streaming.options.declaring import (
    KAFKA_CLIENT_OPTIONS,
    KAFKA_SECURITY_PREFIXES,
    Options,
    Rules,
    option,
    options_of,
    warn_ignored,
)
from kafkalog.streaming.options.kinds import (
    BOOLEAN,
    DURATION_MS,
    PATHS,
    SIZE,
    TEXT,
    Kind,
    choice,
    duration_ms,
    integer,
    number,
    size,
)

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Options):
    RULES: ClassVar[Rules] = Rules(
        ignored=KAFKA_CLIENT_OPTIONS | {"groupIdPrefix"},
        ignored_prefixes=KAFKA_SECURITY_PREFIXES,
        refused={"kafka.auto.offset.reset": "use startingOffsets"},
    )

    paths: tuple[str, ...] = option("path", PATHS, doc="the log directories")
    segment_bytes: int = option("segment.bytes", SIZE, default=7, kafka=True, doc="a size")
    delay_ms: int | None = option("maxTriggerDelay", DURATION_MS, default=None, doc="a time")
    strict: bool = option("failOnDataLoss", BOOLEAN, default=True, doc="a choice")
    level: str = option("isolation", choice("readCommitted", "none"), default="none", doc="words")


def parsed(**given: str) -> Sample:
    return Sample.parse({"path": "/logs", **{k.replace("__", "."): v for k, v in given.items()}})


def test_defaults_hold_where_nothing_is_given() -> None:
    assert Sample(paths=("/logs",)) == Sample.parse({"path": "/logs"})


def test_names_match_in_any_case_and_with_kafkas_prefix_where_declared() -> None:
    assert parsed(SEGMENT__Bytes="5").segment_bytes == 5
    assert parsed(kafka__segment__bytes="5").segment_bytes == 5
    with pytest.raises(OptionError, match=r"'kafka.maxTriggerDelay' is not known"):
        parsed(kafka__maxTriggerDelay="5s")


def test_one_option_given_twice_must_agree_with_itself() -> None:
    both = {"segment__bytes": "1k", "kafka__segment__bytes": "1024"}
    assert parsed(**both).segment_bytes == 1024
    with pytest.raises(OptionError, match=r"'segment\.bytes' is given twice"):
        parsed(**both | {"segment__bytes": "2k"})


def test_a_missing_required_option_is_named_with_its_meaning() -> None:
    with pytest.raises(OptionError, match="'path' is missing: the log directories"):
        Sample.parse({})


def test_an_unknown_option_is_refused_with_the_nearest_known_name() -> None:
    with pytest.raises(OptionError, match=r"did you mean 'failOnDataLoss'\?"):
        parsed(failOnDataLos="true")
    with pytest.raises(OptionError, match=r"did you mean 'kafka.bootstrap.servers'\?"):
        parsed(kafka__bootstrap__server="h:1")
    with pytest.raises(OptionError, match=r"'zzz' is not known$"):
        parsed(zzz="1")


def test_sparks_own_options_pass_without_a_word() -> None:
    assert parsed(queryName="q", checkpointLocation="/c").ignored == ()


def test_client_options_are_ignored_with_one_warning_that_shows_no_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = parsed(
        kafka__sasl__jaas__config="secret", kafka__bootstrap__servers="h:1", GroupIdPrefix="g"
    )
    assert options.ignored == (
        "GroupIdPrefix",
        "kafka.bootstrap.servers",
        "kafka.sasl.jaas.config",
    )
    with caplog.at_level(logging.WARNING, "kafkalog"):
        warn_ignored(options.ignored)
        warn_ignored(options.ignored)
        warn_ignored(())
    assert len(caplog.records) == 1
    assert "kafka.sasl.jaas.config" in caplog.text
    assert "secret" not in caplog.text


def test_a_refused_option_comes_with_its_reason() -> None:
    with pytest.raises(OptionError, match=r"'kafka.auto.offset.reset' .*: use startingOffsets"):
        parsed(kafka__auto__offset__reset="earliest")


def test_a_bad_value_is_shown_with_what_is_accepted() -> None:
    with pytest.raises(OptionError, match="'failOnDataLoss' is 'yes', but accepts true or false"):
        parsed(failOnDataLoss="yes")
    with pytest.raises(OptionError, match=r"'x{200}…'"):
        parsed(failOnDataLoss="x" * 300)


def test_parsed_options_can_be_pickled() -> None:
    options = parsed(segment__bytes="5")
    assert pickle.loads(pickle.dumps(options)) == options


def test_declared_options_are_listed_for_the_docs() -> None:
    listed = options_of(Sample)
    assert [entry.name for entry in listed] == [
        "path",
        "segment.bytes",
        "maxTriggerDelay",
        "failOnDataLoss",
        "isolation",
    ]
    assert [entry.required for entry in listed] == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (BOOLEAN, " TRUE ", True),
        (BOOLEAN, "false", False),
        (SIZE, "0", 0),
        (SIZE, "64m", 64 << 20),
        (SIZE, "64MB", 64 << 20),
        (SIZE, "3 k", 3072),
        (SIZE, "2t", 2 << 40),
        (SIZE, "5b", 5),
        (size(minimum=-1), "-1", -1),
        (DURATION_MS, "1500", 1500),
        (DURATION_MS, "5s", 5000),
        (DURATION_MS, "15m", 900_000),
        (DURATION_MS, "2min", 120_000),
        (DURATION_MS, "7d", 604_800_000),
        (duration_ms(minimum=-1), "-1", -1),
        (integer(minimum=1), "+3", 3),
        (integer(), "-9223372036854775808", -(2**63)),
        (number(0, 1), "0.25", 0.25),
        (choice("lz4", "ZStd"), "zstd", "ZStd"),
        (TEXT, " a ", "a"),
    ],
)
def test_values_are_read_as_users_write_them(kind: Kind[object], text: str, value: object) -> None:
    assert kind.read(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (BOOLEAN, "1"),
        (BOOLEAN, ""),
        (SIZE, "-1"),
        (SIZE, "1.5m"),
        (SIZE, "m"),
        (SIZE, "1x"),
        (SIZE, "9223372036854775808"),
        (SIZE, "9007199254740993k"),
        (DURATION_MS, "5 parsecs"),
        (DURATION_MS, "-1s"),
        (integer(minimum=1), "0"),
        (integer(maximum=5), "6"),
        (integer(), "1e3"),
        (integer(), "\uff11"),
        (integer(), "9" * 5000),
        (integer(), "9223372036854775808"),
        (number(0, 1), "nan"),
        (number(0, 1), "x"),
        (choice("a", "b"), "c"),
        (TEXT, "  "),
        (PATHS, " , "),
    ],
)
def test_values_that_are_not_accepted_are_no_values(kind: Kind[object], text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the caller words the message
        kind.read(text)


def test_paths_are_lists_of_folders_or_file_uris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert PATHS.read("/a, /b/../c ,") == ("/a", "/c")
    assert PATHS.read("file:///a%20b,file:/c,FILE://localhost/d") == ("/a b", "/c", "/d")
    assert PATHS.read("logs") == (str(tmp_path / "logs"),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("s3://bucket/logs", "not on a local file system"),
        ("file://host/logs", "no local file: URI"),
        ("file:logs", "no local file: URI"),
        ("/logs/a\0b", "has a NUL character"),
        ("/logs/a\ud800", "has half of a letter"),
        ("~/logs", "begins with ~, which a shell replaces"),
        ("~", "begins with ~, which a shell replaces"),
        ("file:///logs/a%00b", "has a NUL character"),
        ("/a,/b,/a/", "/a is listed twice"),
    ],
)
def test_paths_that_cannot_be_opened_are_refused(text: str, reason: str) -> None:
    with pytest.raises(OptionError, match=f"'path': .*{reason}"):
        Sample.parse({"path": text})
