"""Completion in a shell: it is installed, and completes commands, options and topics."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import kafkalog

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a home with completion in it, and logs with topics."""
    home = tmp_path_factory.mktemp("home")
    for topic in ("flights", "fares", "seats"):
        kafkalog.append(home / "log", topic, pa.table({"value": ["a"]}))
    (home / "log" / "forgotten").mkdir()
    shell(home, "kafkalog --install-completion bash")
    return home


def shell(home: Path, line: str) -> list[str]:
    """Run a line in a new interactive bash of that home, within it."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # With "exit", bash stays: it is what completion looks for among a command's ancestors.
    ran = subprocess.run(
        ["bash", "-c", f"[ ! -f ~/.bashrc ] || . ~/.bashrc; {line}; exit $?"],
        cwd=home,
        env={**os.environ, "HOME": str(home), "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert ran.stderr == ""
    return ran.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("kafkalog ver", ["verify"]),
        ("kafkalog dump --topi", ["--topic"]),
        ("kafkalog group reset --dry", ["--dry-run"]),
        ("kafkalog group describe re", ["reset"]),
        ("kafkalog run ar", ["archive"]),
        ("kafkalog dump log --topic f", ["fares", "flights"]),
        ("kafkalog find log --topic ''", ["fares", "flights", "seats"]),
        ("kafkalog produce log --topic s", ["seats"]),
        ("kafkalog dump log --partition 0 --topic fl", ["flights"]),
        ("kafkalog dump nowhere --topic f", []),
        ("kafkalog dump --topic f", []),
    ],
)
def test_bash_completes_what_it_was_taught(home: Path, words: str, expected: list[str]) -> None:
    last = len(words.split()) - 1
    lines = shell(
        home,
        f"COMP_WORDS=({words}); COMP_CWORD={last}; "
        "function=$(complete -p kafkalog | sed 's/.*-F \\([^ ]*\\).*/\\1/'); "
        '"$function" kafkalog; printf "%s\\n" "${COMPREPLY[@]}"',
    )
    assert [line for line in lines if line] == expected
