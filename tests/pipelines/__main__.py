"""Let many histories of pipelines happen: ``python -m tests.pipelines --histories 500``."""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import logging
import os
import shutil
import tempfile
import traceback
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

from tests.pipelines.histories import KINDS, History


def main() -> int:
    """Run them, and print those that are at fault; return how many."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--histories", type=int, default=500)
    given.add_argument("--seed", default=f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}")
    given.add_argument("--history", help="one of them again, as seed/17")
    given.add_argument("--kind", choices=[*KINDS])
    given.add_argument("--jobs", type=int, default=os.cpu_count(), help="so many at once")
    asked = given.parse_args()
    names = (
        [asked.history] if asked.history else [f"{asked.seed}/{n}" for n in range(asked.histories)]
    )
    kinds = [asked.kind] if asked.kind else [*KINDS]
    every = [*itertools.product(names, kinds)]
    failed = []
    with ProcessPoolExecutor(asked.jobs, initializer=logging.disable) as pool:
        for (name, kind), report in zip(
            every, pool.map(_report, *zip(*every, strict=True)), strict=True
        ):
            if report:
                failed.append(f"{name} {kind}")
                print(f"\nHISTORY={name} ({kind})\n{report}", flush=True)  # noqa: T201
    print(  # noqa: T201
        f"{len(names)} histories of {', '.join(kinds)}, {len(failed)} at fault: {failed}"
    )
    return len(failed)


def _report(name: str, kind: str) -> str:
    """Let one happen; return what is at fault, or nothing."""
    folder = Path(tempfile.mkdtemp(prefix="kafkalog-pipelines-"))
    try:
        # In the main thread each call would start another one, so that a signal can wait for it.
        with ThreadPoolExecutor(1) as beside:
            beside.submit(History(folder, name, kind).run).result()
    except Exception:  # noqa: BLE001 - whatever it is, it is one history's
        return traceback.format_exc(limit=-3)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ""


if __name__ == "__main__":
    raise SystemExit(min(main(), 1))
