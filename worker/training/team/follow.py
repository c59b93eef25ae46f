"""A process of a run beside its first one: `python -m worker.training.team.follow RUN_DIR DESCRIPTOR`.

Started by `followers`. It says nothing in the run directory; of a failure it tells by the pipe DESCRIPTOR.
"""

import faulthandler
import os
import signal
import sys
from pathlib import Path

from worker.run_directory import FAILED_EXIT_CODE, STACKS_SIGNAL


def main() -> int:
    faulthandler.register(STACKS_SIGNAL, all_threads=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # a shutdown tells everybody; the first process says when it is over
    from worker.training.team.following import follow  # noqa: PLC0415 - torch takes seconds

    with os.fdopen(int(sys.argv[2]), "wb") as words:
        failure = follow(Path(sys.argv[1]))
        if failure is not None:
            words.write(failure.model_dump_json().encode())
    return 0 if failure is None else FAILED_EXIT_CODE


if __name__ == "__main__":
    sys.exit(main())
