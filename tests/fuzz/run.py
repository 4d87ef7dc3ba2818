"""Fuzz parsers, kernels, state files, led by coverage: ``python -m tests.fuzz.run [TARGET ...]``.

Kernels run as Python, over arrays that refuse a wrong index, so that libFuzzer sees their branches.
Then what was found is run through the compiled kernels, which must come to the same. An input that
fails is written to the folder of its target, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ROOT: Final = Path(__file__).parents[2]
_INPUT_BYTES: Final = 1024
_INPUT_SECONDS: Final = 25
_MEMORY_MIB: Final = 2048

KEPT: Final = _ROOT / "tests" / "data" / "fuzz"
"""Inputs that failed once, by target."""


def fuzz(target: str, folder: Path, arguments: Sequence[str]) -> int:
    """Fuzz one target in a process of its own; gives that one's exit status."""
    from tests.fuzz.targets import COMPILED

    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.fuzz.run", "--one", target, str(folder), *arguments]
    return subprocess.run(
        command, cwd=_ROOT, env=_environment(jit=target in COMPILED), check=False
    ).returncode


def replay(names: Iterable[str], folder: Path, *, jit: bool) -> dict[str, str]:
    """Run the inputs in ``folder/<target>`` in another process; gives a hash for each file."""
    command = [sys.executable, "-m", "tests.fuzz.run", "--replay", str(folder), *names]
    done = subprocess.run(
        command, cwd=_ROOT, env=_environment(jit=jit), check=True, capture_output=True, text=True
    )
    pairs = (line.split() for line in done.stdout.splitlines())
    return {path: digest for digest, path in pairs}


def _environment(*, jit: bool) -> dict[str, str]:
    # sets are shown in the order of their hashes
    settled = {"PYTHONHASHSEED": "0", "PYTHONPATH": f"{_ROOT / 'src'}{os.pathsep}{_ROOT}"}
    return os.environ | settled | {"KAFKALOG_JIT": str(int(jit))}


def _fuzz_here(target: str, folder: Path, arguments: Sequence[str]) -> None:
    import atheris

    # Kernels that are compiled cannot be instrumented.
    compiled = os.environ["KAFKALOG_JIT"] == "1"
    with atheris.instrument_imports(include=["kafkalog"], exclude=_kernels() if compiled else []):
        from tests.fuzz import targets
    from tests.fuzz.seeds import seeds_of

    for seed in seeds_of(target):
        (folder / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    bounds = [
        f"-max_len={_INPUT_BYTES}",
        f"-timeout={_INPUT_SECONDS}",
        f"-rss_limit_mb={_MEMORY_MIB}",
        f"-artifact_prefix={folder}/",
    ]
    atheris.Setup(
        [sys.argv[0], *bounds, *arguments, str(folder)], lambda data: targets.result(target, data)
    )
    atheris.Fuzz()


def _kernels() -> list[str]:
    """List the modules that have kernels, and those around them."""
    streaming = _ROOT / "streaming"
    files = [*streaming.rglob("*kernels.py"), *(streaming / "records").rglob("*.py")]
    parts = [path.relative_to(_ROOT).with_suffix("").parts for path in files]
    return [".".join(("kafkalog", *each)) for each in parts]


def _replay_here(folder: Path, names: Sequence[str]) -> None:
    from tests.fuzz import targets

    for name in names or sorted(targets.TARGETS):
        for path in sorted((folder / name).glob("*")):
            told = targets.result(name, path.read_bytes()).encode("utf-8", "surrogatepass")
            print(hashlib.sha256(told).hexdigest()[:16], path)  # noqa: T201
    targets.clean()


def main() -> int:
    """Fuzz the targets that are named, or all, one after the other."""
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=65, help="for each target")
    parser.add_argument("--folder", type=Path, default=_ROOT / "build" / "fuzz")
    given = parser.parse_args()
    names = given.targets or sorted(TARGETS.keys() - {"any_of_them"})
    failed = []
    for name in names:
        print(f"== {name}", flush=True)  # noqa: T201
        if fuzz(name, given.folder / name, [f"-max_total_time={given.seconds}"]):
            failed.append(name)
    interpreted = replay([n for n in names if n not in failed], given.folder, jit=False)
    compiled = replay([n for n in names if n not in failed], given.folder, jit=True)
    differing = [path for path in interpreted if interpreted[path] != compiled.get(path)]
    told = f"failed: {failed or 'none'}; differing: {differing or 'none'}"
    print(f"{len(interpreted)} inputs; {told}")  # noqa: T201
    return int(bool(failed or differing))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--one", target, folder, *arguments]:
            _fuzz_here(target, Path(folder), arguments)
        case ["--replay", folder, *names]:
            _replay_here(Path(folder), names)
        case _:
            sys.exit(main())
