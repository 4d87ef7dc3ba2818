"""Run pip, and say what it fetches and how far it is: ``install.py WHAT WORD…``.

pip alone says all or nothing. WHAT stands before each line. If pip fails, its own output follows.
"""

from __future__ import annotations

import re
import subprocess
import sys

_FETCHED = re.compile(r"\s*(?:Downloading|Using cached) (\S+)(?: \((.+)\))?")
_WHEEL = re.compile(r"(?:.*/)?(.+?)-(\d[^-]*)[-.]")


def main(what: str, words: list[str]) -> int:
    """Run pip with these words; return its exit code."""
    command = [sys.executable, "-m", "pip", "install", "--progress-bar", "off", *words]
    pip = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output, count = [], 0
    assert pip.stdout is not None
    for line in pip.stdout:
        output.append(line)
        fetched = _FETCHED.match(line)
        if fetched:
            count += 1
            name = _WHEEL.match(fetched[1])
            shown = f"{name[1]} {name[2]}" if name else fetched[1]
            print(f"{what}: {count}. {shown} ({fetched[2] or '?'})", flush=True)
        elif line.startswith("Installing collected packages:"):
            installed = line.partition(":")[2].count(",") + 1
            print(f"{what}: installing {installed} packages", flush=True)
    code = pip.wait()
    if code:
        sys.stderr.writelines(output)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
