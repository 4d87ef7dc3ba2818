from __future__ import annotations

import errno
import json
import os
import struct
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from kafkalog.errors import FencedMemberError
from kafkalog.model import TopicPartition
from kafkalog.streaming.groups.member_files import (
    MEMBER_PREFIX,
    Heartbeat,
    MemberFile,
    MemberFolder,
    member_file_name,
)
from kafkalog.streaming.groups.rebalance import MemberSettings, Presence

if TYPE_CHECKING:
    from pathlib import Path

WISH = Presence(MemberSettings(frozenset({"t", "u"}), "i", "c", "h", 1, 2), "range")
LATER = Presence(
    MemberSettings(frozenset({"t"}), None, "c", "h", 1, 2),
    "sticky",
    7,
    frozenset({TopicPartition("t", 0), TopicPartition("t", 3)}),
    leaving=True,
)


def heartbeats(folder: Path, group: str = "g") -> dict[str, Heartbeat]:
    return {
        heartbeat.member or name: heartbeat
        for name, heartbeat in MemberFolder(folder, group).read().items()
    }


def test_what_a_member_says_is_read_and_its_counter_moves_with_each_heartbeat(
    tmp_path: Path,
) -> None:
    assert MemberFolder(tmp_path, "g").read() == {}
    file = MemberFile(tmp_path, "g", "A")
    file.create(WISH)
    assert heartbeats(tmp_path) == {"A": Heartbeat(0, "A", WISH, os.getpid())}
    file.beat()
    assert heartbeats(tmp_path) == {"A": Heartbeat(1, "A", WISH, os.getpid())}
    file.say(LATER)
    assert heartbeats(tmp_path) == {"A": Heartbeat(2, "A", LATER, os.getpid())}
    file.say(WISH)
    file.beat()
    assert heartbeats(tmp_path) == {"A": Heartbeat(4, "A", WISH, os.getpid())}
    file.remove()
    file.remove()
    assert MemberFolder(tmp_path, "g").read() == {}


def test_a_member_whose_file_was_taken_away_does_not_make_it_again(tmp_path: Path) -> None:
    file = MemberFile(tmp_path, "g", "A")
    file.create(WISH)
    MemberFolder(tmp_path, "g").remove("A")
    with pytest.raises(FencedMemberError, match="group 'g' has gone on without member 'A'"):
        file.beat()
    with pytest.raises(FencedMemberError, match="join again"):
        file.say(LATER)
    assert not list(tmp_path.iterdir())


def test_a_member_id_is_taken_once(tmp_path: Path) -> None:
    MemberFile(tmp_path, "g", "A").create(WISH)
    with pytest.raises(FileExistsError):
        MemberFile(tmp_path, "g", "A").create(LATER)
    assert heartbeats(tmp_path) == {"A": Heartbeat(0, "A", WISH, os.getpid())}
    assert [each.name for each in tmp_path.iterdir()] == [member_file_name("g", "A")]


def test_a_member_that_finds_no_space_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_all(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("kafkalog.files.atomic.write_all", write_all)
    with pytest.raises(OSError, match="No space"):
        MemberFile(tmp_path, "g", "A").create(WISH)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_member_left_without_a_name_is_no_member(tmp_path: Path) -> None:
    MemberFile(tmp_path, "g", "A").create(WISH)
    file = tmp_path / member_file_name("g", "A")
    file.rename(f"{file}.tmp")
    assert MemberFolder(tmp_path, "g").read() == {}
    copy = tmp_path / member_file_name("g", "B")
    copy.write_bytes((tmp_path / f"{file.name}.tmp").read_bytes())
    assert MemberFolder(tmp_path, "g").read() == {}
    copy.unlink()
    MemberFile(tmp_path, "g", "A").create(WISH)
    assert heartbeats(tmp_path) == {"A": Heartbeat(0, "A", WISH, os.getpid())}
    assert [each.name for each in tmp_path.iterdir()] == [member_file_name("g", "A")]


def test_groups_in_one_folder_do_not_see_each_other_whatever_they_are_called(
    tmp_path: Path,
) -> None:
    names = ["g", "g.h", "../g", "*", "é\ud800"]
    for name in names:
        MemberFile(tmp_path, name, "../A").create(WISH)
    assert all(each.parent == tmp_path for each in tmp_path.rglob("*"))
    for name in names:
        assert heartbeats(tmp_path, name) == {"../A": Heartbeat(0, "../A", WISH, os.getpid())}


@pytest.mark.parametrize("cut", [3, 16, 40])
def test_a_text_that_is_half_written_says_nothing(tmp_path: Path, cut: int) -> None:
    file = MemberFile(tmp_path, "g", "A")
    file.create(WISH)
    path = tmp_path / member_file_name("g", "A")
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    expected = {} if cut < 16 else {path.name: Heartbeat(0)}
    assert MemberFolder(tmp_path, "g").read() == expected
    path.write_bytes(whole[:50] + b"~" + whole[51:])
    assert MemberFolder(tmp_path, "g").read() == {path.name: Heartbeat(0)}
    file.say(LATER)
    assert heartbeats(tmp_path) == {"A": Heartbeat(1, "A", LATER, os.getpid())}


@pytest.mark.parametrize(
    "said",
    [
        {"sessionTimeoutMs": 1 << 40},
        {"rebalanceTimeoutMs": -1},
        {"generation": 1 << 31},
        {"owned": [["t", -1]]},
        {"strategy": "nearest"},
        {"client": "x" * 40_000},
        {"host": "\ud800"},
        {"instance": "y" * 40_000},
        {"topics": ["\ud800"]},
    ],
    ids=lambda said: next(iter(said)),
)
def test_what_no_record_can_hold_says_nothing(tmp_path: Path, said: dict[str, object]) -> None:
    MemberFile(tmp_path, "g", "A").create(WISH)
    path = tmp_path / member_file_name("g", "A")
    whole = json.loads(path.read_bytes()[16:])
    text = json.dumps({**whole, **said}).encode()
    path.write_bytes(struct.pack(">qII", 5, len(text), crc32c(text)) + text)
    assert MemberFolder(tmp_path, "g").read() == {path.name: Heartbeat(5)}


def test_files_that_only_look_like_a_members_say_nothing(tmp_path: Path) -> None:
    MemberFile(tmp_path, "other", "A").create(WISH)
    strange = member_file_name("other", "A").split(".")
    ours = member_file_name("g", "A").rsplit(".", 1)[0]
    (tmp_path / f"{ours}.{strange[-1]}").write_bytes(
        (tmp_path / member_file_name("other", "A")).read_bytes()
    )
    (tmp_path / f"{ours}.folder").mkdir()
    (tmp_path / f"{ours}.link").symlink_to(tmp_path / member_file_name("other", "A"))
    (tmp_path / f"{ours}.text").write_bytes(struct.pack(">qII", 5, 2, 0xA8B0CAF9) + b"[]")
    assert {heartbeat.presence for heartbeat in MemberFolder(tmp_path, "g").read().values()} <= {
        None
    }
    assert all(name.startswith(MEMBER_PREFIX) for name in MemberFolder(tmp_path, "g").read())
