"""Attack the tools: ``python -m tests.attack KIND --count N --seed S --jobs J``; see README.md."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter
from pathlib import Path

from tests.attack import kinds
from tests.attack.jobs import run_all
from tests.attack.regressions import remember


def main(argv: list[str] | None = None) -> int:
    """Run the cases asked for and return the exit code: 1 if one fell."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument(
        "kind", metavar="KIND", choices=[*kinds.found(), "all"], help=", ".join(kinds.found())
    )
    parser.add_argument("--count", type=int, default=100, metavar="N", help="cases of each kind (100)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the first case (0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="cases at a time (1)")
    parser.add_argument("--timeout", type=float, default=120, metavar="S", help="seconds for a case (120)")
    parser.add_argument("--save", action="store_true", help="keep what falls as regression cases")
    options = parser.parse_args(argv)
    names = kinds.found() if options.kind == "all" else [options.kind]
    return max(_run(name, options) for name in names)


def _run(kind: str, options: argparse.Namespace) -> int:
    seeds = range(options.seed, options.seed + options.count)
    notes: Counter[str] = Counter()
    done, fallen, start = 0, 0, time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):  # what was done until then is told
        for result in run_all(kind, seeds, options.jobs, options.timeout):
            done += 1
            notes.update(result.notes)
            if done % 100 == 0:
                print(f"{kind}: {done} of {len(seeds)} cases, {fallen} fell", file=sys.stderr, flush=True)
            if result.failure is not None:
                fallen += 1
                print(f"{kind} {result.seed}: {result.failure}", flush=True)
                if options.save:
                    remember(kind, result.seed, result.failure)
    for note, count in notes.most_common():
        print(f"  {count} x {note}")
    spent = time.monotonic() - start
    print(f"{kind}: {fallen} of {done} cases fell, {spent:.0f} s, seeds from {seeds.start}", flush=True)
    return int(fallen > 0 or done < len(seeds))


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(main())
