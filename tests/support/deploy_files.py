"""The files of docs/deploy, and what the image is built from."""

from __future__ import annotations

import fnmatch
import re
import shutil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import yaml
from tests.support.distributions import ROOT, project_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "COMPOSE",
    "DOCKERFILE",
    "KUBERNETES",
    "Instruction",
    "compose",
    "context_files",
    "copy_context",
    "instructions",
    "kubernetes",
]

FOLDER: Final = ROOT / "docs" / "deploy"
DOCKERFILE: Final = FOLDER / "Dockerfile"
COMPOSE: Final = FOLDER / "compose.yaml"
KUBERNETES: Final = FOLDER / "kubernetes.yaml"


class Instruction(NamedTuple):
    """A line of the Dockerfile, with its continuations; ``stage`` counts the ``FROM`` from 0."""

    stage: int
    word: str
    text: str


def instructions() -> list[Instruction]:
    """Return the instructions of the Dockerfile."""
    lines = DOCKERFILE.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    found = []
    stage = -1
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        word, _, rest = line.partition(" ")
        if word:
            stage += word == "FROM"
            found.append(Instruction(stage, word, rest))
    return found


def compose() -> dict[str, Any]:
    """Return the compose file, with what is merged into a service in its place."""
    return dict(yaml.safe_load(COMPOSE.read_text(encoding="utf-8")))


def kubernetes() -> list[dict[str, Any]]:
    """Return the resources for Kubernetes."""
    return list(yaml.safe_load_all(KUBERNETES.read_text(encoding="utf-8")))


def context_files() -> Iterator[Path]:
    """List the project's files that Docker is given; relative to the root. Links are there too."""
    lines = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    links = [path.relative_to(ROOT) for path in (ROOT / "src/kafkalog").iterdir()]
    for path in sorted({*project_files(), *(link for link in links if (ROOT / link).is_symlink())}):
        if not _is_ignored(path, rules):
            yield path


def copy_context(folder: Path) -> None:
    """Copy what Docker is given."""
    for path in context_files():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, folder / path, follow_symlinks=False)


def _is_ignored(path: Path, rules: list[str]) -> bool:
    """Go by the last rule that matches a path, or a folder that it lies in."""
    ignored = False
    names = ["/".join(path.parts[: count + 1]) for count in range(len(path.parts))]
    for rule in rules:
        pattern = rule.removeprefix("!")
        # `**/` is any folders, none too
        patterns = [pattern, pattern.removeprefix("**/")]
        if any(_matches(name, each) for name in names for each in patterns):
            ignored = not rule.startswith("!")
    return ignored


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatch.fnmatchcase(name, pattern.replace("**/", "*/"))
    return name.count("/") == pattern.count("/") and fnmatch.fnmatchcase(name, pattern)
