"""Let many histories of pipelines happen: ``python -m tests.pipelines --histories 500``."""

from __future__ import annotations

import argparse
import datetime as dt
import logging
import shutil
import tempfile
import traceback
from pathlib import Path

from tests.pipelines.histories import KINDS, History


def main() -> int:
    """Run them, and print those that are at fault; return how many."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--histories", type=int, default=500)
    given.add_argument("--seed", default=f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}")
    given.add_argument("--history", help="one of them again, as seed/17")
    given.add_argument("--kind", choices=[*KINDS])
    asked = given.parse_args()
    logging.disable()
    names = (
        [asked.history] if asked.history else [f"{asked.seed}/{n}" for n in range(asked.histories)]
    )
    kinds = [asked.kind] if asked.kind else [*KINDS]
    failed = [f"{name} {kind}" for name in names for kind in kinds if not _holds(name, kind)]
    print(  # noqa: T201
        f"{len(names)} histories of {', '.join(kinds)}, {len(failed)} at fault: {failed}"
    )
    return len(failed)


def _holds(name: str, kind: str) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="kafkalog-pipelines-"))
    try:
        History(folder, name, kind).run()
    except Exception:  # noqa: BLE001 - whatever it is, it is one history's
        print(f"\nHISTORY={name} ({kind})\n{traceback.format_exc(limit=-3)}")  # noqa: T201
        return False
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return True


if __name__ == "__main__":
    raise SystemExit(min(main(), 1))
