from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.sinking import Writer, rows, values_of

from kafkalog.errors import OptionError
from kafkalog.streaming.operate.handover import hand_over

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
