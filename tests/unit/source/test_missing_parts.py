"""Log directories and partitions that the commit state knows and that are not there: readers."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.sinking import Writer, rows

import kafkalog
from kafkalog.checkpoints.broker import PARTITION_METADATA, write_topic_id
from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.errors import DataLossError, UnknownTopicOrPartitionError
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from pathlib import Path

AT_ONCE = {"fetchOffset.retryIntervalMs": "0"}
GO_ON = {**AT_ONCE, "failOnDataLoss": "false"}
NUMBERS = [0, 1, 2]


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """Give a query that has written a row to each of three partitions in two directories."""
    made = Writer(tmp_path / "a", tmp_path / "b", topic="t", numPartitions="3")
    made.write(0, rows([f"v{p}" for p in NUMBERS], partitions=NUMBERS))
    return made


def folder_of(writer: Writer, number: int) -> Path:
    (found,) = (path for each in writer.directories for path in each.glob(f"t-{number}"))
    return found


def numbers_in(folder: Path) -> list[int]:
    return sorted(int(path.name[-1]) for path in folder.glob("t-?"))


def read(*paths: Path, **options: str) -> list[int]:
    found = kafkalog.read(list(paths), "t", options=AT_ONCE | options).read_all()
    return sorted(found["partition"].to_pylist())


def parsed(writer: Writer, **options: str) -> ReadOptions:
    path = ",".join(map(str, writer.directories))
    return ReadOptions.parse({"path": path, **AT_ONCE, **options})


def unmount(folder: Path) -> Path:
    """Leave an empty mount point; give where the files are."""
    folder.rename(folder.with_name("unmounted"))
    folder.mkdir()
    return folder.with_name("unmounted")


def test_a_directory_that_is_not_mounted_is_a_loss(
    writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = writer.directories
    lost = numbers_in(b)
    unmount(b)
    with pytest.raises(DataLossError, match=r"1 of the 2 log directories .*/b holds no kafkalog"):
        read(a, b)
    assert read(a, b, failOnDataLoss="false") == numbers_in(a)
    (message,) = caplog.messages
    assert all(f"t-{number} up to offset 1" in message for number in lost)


def test_a_topic_that_lies_wholly_in_a_missing_directory_is_a_loss_and_not_unknown(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path / "a", tmp_path / "b", numPartitions="1")
    writer.write(0, rows(["x"], topics=["t"]))
    writer.write(1, rows(["y"], topics=["u"]))
    (t,) = (path for path in writer.directories if (path / "t-0").is_dir())
    unmount(t)
    for pattern in ({"subscribe": "t"}, {"subscribePattern": "^t$"}, {"assign": '{"t":[0]}'}):
        with pytest.raises(DataLossError, match="t-0 up to offset 1"):
            plan_batch(parsed(writer, **pattern))
        with pytest.raises(DataLossError, match="t-0 up to offset 1"):
            StreamControl(parsed(writer, **pattern)).initial()


def test_fewer_directories_than_the_set_has_are_said_once(
    writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = writer.directories
    assert read(a) == numbers_in(a)
    (message,) = caplog.messages
    assert "1 of the 2 log directories" in message
    assert "were not given" in message
    assert all(f"t-{number} up to offset 1" in message for number in numbers_in(b))
    caplog.clear()
    batches = kafkalog.tail(
        a, "t", idle_timeout=0.2, options={"startingOffsets": "earliest", **AT_ONCE}
    )
    assert sum(batch.num_rows for batch in batches) == len(numbers_in(a))
    assert len(caplog.messages) == 1


def test_one_partition_s_folder_is_read_without_a_word(
    writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    assert read(folder_of(writer, 1)) == [1]
    assert caplog.messages == []


def test_a_set_in_which_nothing_is_committed_has_lost_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(tmp_path / "a", tmp_path / "b", topic="t")
    writer.plan()
    (tmp_path / "b" / STATE_FILE).unlink()  # as where the start of the set is cut off
    assert plan_batch(parsed(writer, subscribePattern="nothing|t")) == []
    assert not any("missing" in message for message in caplog.messages)


def test_a_directory_that_is_about_to_join_is_none_that_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Writer(tmp_path / "a", topic="t").write(0, rows(["x"]))
    (tmp_path / "new").mkdir()
    assert read(tmp_path / "a", tmp_path / "new") == [0]
    assert caplog.messages == []


@pytest.mark.parametrize(
    "which", [{"subscribe": "t"}, {"subscribePattern": "t.*"}, {"assign": '{"t":[0,1,2]}'}]
)
def test_a_partition_without_its_folder_is_a_loss(
    writer: Writer, which: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(folder_of(writer, 1))
    with pytest.raises(DataLossError, match="committed and have no folder: t-1 up to offset 1"):
        plan_batch(parsed(writer, **which))
    stream = StreamControl(parsed(writer, startingOffsets="earliest", **which))
    with pytest.raises(DataLossError, match="t-1 up to offset 1"):
        stream.initial()
    splits = plan_batch(parsed(writer, **which, **GO_ON))
    assert [split.topic_partition.partition for split in splits] == [0, 2]
    assert len([message for message in caplog.messages if "have no folder" in message]) == 1


def test_every_view_of_a_topic_misses_the_partition(writer: Writer) -> None:
    shutil.rmtree(folder_of(writer, 1))
    with pytest.raises(DataLossError, match="t-1 up to offset 1"):
        plan_batch(parsed(writer, subscribe="t", view="batches"))


@pytest.mark.parametrize(("topic", "view"), [("__consumer_offsets", "offsets")])
def test_decoded_topics_miss_their_partitions_too(tmp_path: Path, topic: str, view: str) -> None:
    writer = Writer(tmp_path / "a", topic=topic, numPartitions="2", allowInternalTopics="true")
    writer.write(0, rows(["x", "y"], partitions=[0, 1]))
    shutil.rmtree(tmp_path / "a" / f"{topic}-1")
    with pytest.raises(DataLossError, match=f"{topic}-1 up to offset 1"):
        plan_batch(parsed(writer, subscribe=topic, view=view))


def test_partitions_that_are_not_asked_for_may_be_gone(
    writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(folder_of(writer, 1))
    splits = plan_batch(parsed(writer, assign='{"t":[0,2]}'))
    assert [split.topic_partition.partition for split in splits] == [0, 2]
    assert caplog.messages == []


def test_a_topic_without_any_folder_was_deleted_and_is_no_loss(
    writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    writer.write(1, rows(["y"], topics=["t"]))
    other = Writer(*writer.directories, name="other", topic="u")
    other.write(0, rows(["x"]))
    for number in NUMBERS:
        shutil.rmtree(folder_of(writer, number))
    splits = plan_batch(parsed(writer, subscribePattern="t|u"))
    assert [str(split.topic_partition) for split in splits] == ["u-0"]
    assert not any("loss" in message.lower() for message in caplog.messages)
    with pytest.raises(UnknownTopicOrPartitionError):
        plan_batch(parsed(writer, subscribe="t"))


def test_a_topic_that_others_have_made_again_has_lost_nothing(writer: Writer) -> None:
    for number in NUMBERS[1:]:
        shutil.rmtree(folder_of(writer, number))
    write_topic_id(folder_of(writer, 0), "AAAAAAAAAAAAAAAAAAAAAQ")
    splits = plan_batch(parsed(writer, subscribe="t"))
    assert [split.topic_partition.partition for split in splits] == [0]


def test_a_topic_whose_folders_have_lost_their_id_misses_its_partition(writer: Writer) -> None:
    shutil.rmtree(folder_of(writer, 1))
    for number in (0, 2):
        (folder_of(writer, number) / PARTITION_METADATA).unlink()
    with pytest.raises(DataLossError, match="t-1 up to offset 1"):
        plan_batch(parsed(writer, subscribe="t"))


def running(writer: Writer, **options: str) -> tuple[StreamControl, Any]:
    stream = StreamControl(parsed(writer, startingOffsets="earliest", **options))
    end = stream.next_end(stream.initial(), take_all=False)
    stream.plan(stream.initial(), end)
    return stream, end


def test_a_running_query_misses_a_directory_as_well(
    writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    stream, end = running(writer, subscribe="t")
    lax, lax_end = running(writer, subscribe="t", failOnDataLoss="false")
    unmount(writer.directories[1])
    with pytest.raises(DataLossError, match="1 of the 2 log directories"):
        stream.next_end(end, take_all=True)
    caplog.clear()
    for _ in range(3):
        lax_end = lax.next_end(lax_end, take_all=True)
    said = [message for message in caplog.messages if "1 of the 2" in message]
    assert len(said) == 1


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_final", [False, True])
def test_a_query_that_goes_on_without_a_directory_reads_on_where_it_was_when_that_is_back(
    writer: Writer, *, is_restarted: bool, is_final: bool
) -> None:
    b = writer.directories[1]
    stream, end = running(writer, subscribe="t", failOnDataLoss="false")
    away = unmount(b)
    if is_restarted:
        stream = StreamControl(parsed(writer, subscribe="t", failOnDataLoss="false"))
    if is_final:
        stream.freeze_targets()
    assert stream.next_end(end, take_all=is_final) == end
    assert stream.plan(end, end) == []
    if is_restarted or is_final:
        stream = StreamControl(parsed(writer, subscribe="t", failOnDataLoss="false"))
    b.rmdir()
    away.rename(b)
    writer.write(1, rows([f"w{p}" for p in NUMBERS], partitions=NUMBERS))
    last = stream.next_end(end, take_all=True)
    splits = stream.plan(end, last)
    starts = {split.topic_partition.partition: split.slices[0].start_offset for split in splits}
    assert starts == dict.fromkeys(NUMBERS, 1)


def test_a_partition_whose_topic_is_deleted_does_not_wait_to_come_back(writer: Writer) -> None:
    other = Writer(*writer.directories, name="other", topic="u")
    other.write(0, rows(["x"]))
    stream, end = running(writer, subscribePattern="t|u", failOnDataLoss="false")
    shutil.rmtree(folder_of(writer, 1))
    assert stream.next_end(end, take_all=True) == end
    for number in (0, 2):
        shutil.rmtree(folder_of(writer, number))
    assert [str(key) for key in stream.next_end(end, take_all=False)] == ["u-0"]


def test_a_new_partition_that_a_running_query_never_finds_is_a_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(tmp_path / "a", topic="t")
    writer.write(0, rows(["x"]))
    stream, end = running(writer, subscribePattern="t|u")
    new = Writer(tmp_path / "a", name="new", topic="u", numPartitions="2")
    new.write(0, rows(["y", "z"], partitions=[0, 1]))
    shutil.rmtree(tmp_path / "a" / "u-1")
    with pytest.raises(DataLossError, match="u-1 up to offset 1"):
        stream.next_end(end, take_all=True)


def test_what_is_there_again_at_the_next_look_was_not_lost(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_of(writer, 1)
    aside = folder.with_name("aside")
    folder.rename(aside)

    def put_back(_: float) -> None:
        if aside.exists():  # whoever lists the folder rests, too
            aside.rename(folder)

    monkeypatch.setattr("kafkalog.files.system.system.sleep", put_back)
    splits = plan_batch(parsed(writer, subscribe="t"))
    assert [split.topic_partition.partition for split in splits] == NUMBERS
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_query_that_is_told_that_its_set_has_grown_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(tmp_path / "a", topic="t")
    writer.write(0, rows(["x"]))
    stream, end = running(writer, subscribe="t")
    assert caplog.messages == []
    Writer(tmp_path / "a", tmp_path / "b", name="more", topic="t").write(0, rows(["y"]))
    for _ in range(3):
        end = stream.next_end(end, take_all=True)
    assert len([message for message in caplog.messages if "were not given" in message]) == 1
