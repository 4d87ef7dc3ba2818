from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.sinking import Writer, rows, values_of

from kafkalog.checkpoints.broker import write_topic_id
from kafkalog.errors import LogDirectoryError, OptionError
from kafkalog.streaming.admin.broker import handover
from kafkalog.streaming.admin.broker.handover import hand_over, take_over

if TYPE_CHECKING:
    from pathlib import Path


ID = "hpYgM1pPTfKkq0oFhDYc0w"


@pytest.mark.parametrize("wrong", ["bJWoF+3pSfa/Qujz7FgnTQ", "A" * 22, "short", "../x", ID])
def test_an_id_that_is_none_is_refused_before_anything_is_changed(
    tmp_path: Path, wrong: str
) -> None:
    for number, topic in enumerate("tu"):
        Writer(tmp_path, name=topic, topic=topic).write(0, rows([str(number)]))
    before = {path: path.read_bytes() for path in tmp_path.glob("*/partition.metadata")}
    state = (tmp_path / "kafkalog.commit").read_bytes()
    with pytest.raises(OptionError, match=r"is no id of topic 't'|is given to two topics"):
        hand_over([str(tmp_path)], topic_ids={"u": ID, "t": wrong})
    assert (tmp_path / "kafkalog.commit").read_bytes() == state
    assert {path: path.read_bytes() for path in tmp_path.glob("*/partition.metadata")} == before
    Writer(tmp_path, name="t", topic="t").write(1, rows(["2"]))
    assert values_of([tmp_path], "t") == {0: ["0", "2"]}


def test_a_handover_that_is_killed_between_two_folders_is_no_problem_of_a_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Writer(tmp_path, topic="t", numPartitions="2").write(0, rows(["a", "b"], partitions=[0, 1]))
    original = handover.write_topic_id

    def write_one(folder: Path, topic_id: str) -> None:
        if folder.name == "t-1":
            raise KeyboardInterrupt
        original(folder, topic_id)

    with monkeypatch.context() as patch:
        patch.setattr(handover, "write_topic_id", write_one)
        with pytest.raises(KeyboardInterrupt):
            hand_over([str(tmp_path)], topic_ids={"t": ID})
    assert take_over([str(tmp_path)]).problems == []


def test_folders_of_one_name_that_are_of_two_topics_are_left_alone(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions="2")
    writer.write(0, rows(["a", "b"], partitions=[0, 1]))
    write_topic_id(tmp_path / "t-1", ID)
    with pytest.raises(LogDirectoryError, match="left over from an older topic of that name"):
        writer.write(1, rows(["c"], partitions=[0]))
    assert any("left over" in each for each in take_over([str(tmp_path)]).problems)
