from __future__ import annotations

import pytest
import typer

from kafkalog.jobs.arguments import pairs


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
