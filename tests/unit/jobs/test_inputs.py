"""What a pipeline takes in is checked before Spark starts."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest
import typer

from kafkalog.errors import KafkaLogError
from kafkalog.jobs.pipelines.inputs import Input

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"place": "/nowhere"}, "/nowhere does not exist"),
        ({"place": "/nowhere", "format": "orc"}, "/nowhere does not exist"),
        ({"place": "/nowhere", "format": "delta"}, "/nowhere does not exist"),
        ({"place": "/", "format": "delta"}, "/ is no Delta table: it has no folder _delta_log"),
        (
            {"place": "/", "format": "delta", "schema": "a INT"},
            "--schema is not for --format delta",
        ),
        ({"place": "/", "isolation": "read_committed"}, "--isolation is for --format kafka"),
        ({"place": "kafka", "format": "kafka"}, "'kafka' is not of the form HOST:PORT"),
        ({"place": "a:1,b", "format": "kafka"}, "'a:1,b' is not of the form HOST:PORT"),
        (
            {"format": "kafka", "options": {"subscribe": "a", "subscribePattern": "b"}},
            "give one of subscribe, subscribePattern and assign",
        ),
        (
            {"format": "kafka", "options": {"Kafka.Bootstrap.Servers": "a:1"}},
            "kafka.bootstrap.servers is what INPUT says",
        ),
    ],
)
def test_an_input_that_cannot_be_read_is_refused_in_one_sentence(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        Input(**{"place": "127.0.0.1:1", **given}).check()
    assert said in refused.value.message


def test_brokers_of_which_none_answers_are_refused_and_one_is_enough() -> None:
    with socket.socket() as deaf, socket.create_server(("127.0.0.1", 0)) as broker:
        deaf.bind(("127.0.0.1", 0))  # it does not listen
        silent, there = (f"127.0.0.1:{each.getsockname()[1]}" for each in (deaf, broker))
        with pytest.raises(KafkaLogError, match=f"none of the brokers answers: {silent}"):
            Input(silent, "kafka").check()
        Input(f"{silent}, {there}", "kafka").check()


def test_a_folder_with_a_delta_log_and_a_name_that_spark_knows_are_left_to_spark(
    tmp_path: Path,
) -> None:
    (tmp_path / "_delta_log").mkdir()
    Input(str(tmp_path), "delta").check()
    Input("sales.orders", "table").check()
    Input("anything", "rate").check()
