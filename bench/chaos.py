"""No job lost, none run twice, every resume exact: real processes, broken at random, and an oracle over the ledger.

    podium bench chaos [--jobs N] [--faults M] [--seed S] [--no-fencing] [--store s3|folder] [--json]

Postgres, Valkey, SeaweedFS, the API, dispatchers, Celery workers and supervisors are the real ones; the trainer is
scripted. M faults are struck from outside, more come from failpoints inside. The exit code is 0 only if the oracle is
satisfied: nothing lost, doubled, stale, badly loaded or left behind. Times are printed, and do not decide.

`--no-fencing` is the negative control: leases are matched by the job's id alone, and the oracle must fail.
"""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from bench._chaos.plan import FaultKind
from bench._chaos.run import Options, run

WORKERS = 6
MEAN_GAP_S = 1.5


def main() -> None:
    arguments = _parser().parse_args()
    options = Options(
        jobs=arguments.jobs,
        faults=arguments.faults,
        seed=random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed,
        fencing=not arguments.no_fencing,
        s3=arguments.store == "s3",
        workers=arguments.workers,
        mean_gap_s=arguments.mean_gap_s,
        kinds=arguments.only or tuple(FaultKind),
    )
    folder = Path(tempfile.mkdtemp(prefix="podium-chaos-"))
    print(f"seed {options.seed}, evidence in {folder}", file=sys.stderr, flush=True)
    report = run(options, folder)
    if arguments.json:
        print(report.as_json())
    else:
        report.show()
    went_as_it_should = report.is_safe is options.fencing
    if went_as_it_should and not arguments.keep:
        shutil.rmtree(folder)
    sys.exit(0 if report.is_safe else 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="podium bench chaos")
    parser.add_argument("--jobs", type=_count, default=60)
    parser.add_argument("--faults", type=int, default=50, help="struck from outside; failpoints come on top")
    parser.add_argument("--seed", type=int, help="decides jobs and faults; printed when it is chosen here")
    parser.add_argument("--no-fencing", action="store_true", help="the negative control: the oracle must fail")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--store", choices=("s3", "folder"), default="s3")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--mean-gap-s", type=float, default=MEAN_GAP_S, help="between two faults, on average")
    parser.add_argument("--only", type=FaultKind, action="append", help="this kind of fault, and no other; repeatable")
    parser.add_argument("--keep", action="store_true", help="leave the evidence also of a run that went as it should")
    return parser


def _count(text: str) -> int:
    if (count := int(text)) < 2:
        raise argparse.ArgumentTypeError("at least 2")
    return count


if __name__ == "__main__":
    main()
