from __future__ import annotations

import pytest
import typer

from kafkalog.jobs.process.arguments import named_values, pairs


def test_a_setting_is_cut_at_its_first_equals_sign() -> None:
    assert pairs(["segment.bytes=1m", 'startingOffsets={"t":{"0":1}}', "a=b=c", "empty="]) == {
        "segment.bytes": "1m",
        "startingOffsets": '{"t":{"0":1}}',
        "a": "b=c",
        "empty": "",
    }
    assert pairs(None) == {}


@pytest.mark.parametrize("word", ["segment.bytes", "=1m"])
def test_a_word_that_sets_nothing_is_refused(word: str) -> None:
    with pytest.raises(typer.BadParameter, match="NAME=VALUE"):
        pairs([word])


def test_a_name_has_one_value_unless_names_may_come_again() -> None:
    assert pairs(["a=1", "a=1"]) == {"a": "1"}
    with pytest.raises(typer.BadParameter, match="a is given twice: '1' and '2'"):
        pairs(["a=1", "a=2"])
    assert named_values(["a=1", "a=2"]) == [("a", "1"), ("a", "2")]
