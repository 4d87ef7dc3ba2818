"""``kafkalog report`` of log directories in an object store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.corpus import UnpackedCase
from tests.support.object_store import object_store
from typer.testing import CliRunner

from kafkalog.jobs.cli.app import app

pytestmark = pytest.mark.interop


def test_a_report_of_a_store_says_what_one_of_the_folder_says_and_no_keys(tmp_path: Path) -> None:
    case = UnpackedCase("p06-transactions", tmp_path)
    with object_store() as store:
        store.upload(Path(case.path), "logs")
        endpoint = store.endpoint.removeprefix("http://")
        words = f"region=us-east-1&endpoint_override={endpoint}&scheme=http"
        uri = f"s3://an-id:a-well-kept-secret@archive/logs?{words}"
        file = tmp_path / "r.html"
        done = CliRunner().invoke(app, ["report", uri, "--html", str(file), "--checkpoint", "no"])
        assert (done.exit_code, file.exists()) == (2, False)
        done = CliRunner().invoke(app, ["report", uri, "--html", str(file)])
        assert done.exit_code == 0, done.output
        page = file.read_text()
        found = CliRunner().invoke(app, ["report", uri, "--json"])
    here = CliRunner().invoke(app, ["report", case.path, "--json"])
    ours, theirs = (
        [
            {name: value for name, value in row.items() if name not in {"time", "path", "paths"}}
            for row in map(json.loads, each.stdout.splitlines())
            if row["kind"] not in {"finding", "disk"}  # a store has no disk of ours
        ]
        for each in (found, here)
    )
    assert ours == theirs
    assert "s3://archive/logs" in page
    assert "A store is only read" in page
    for text in (page, done.output, found.output):
        assert "a-well-kept-secret" not in text
