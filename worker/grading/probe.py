"""`python -m worker.grading.probe`: what isolates reward code on this machine, as JSON; for `podium doctor`."""

import json
from dataclasses import asdict

from core.errors import ServiceError
from worker.grading.image import image
from worker.grading.limits import counts_processes
from worker.grading.rules import GradingRules
from worker.grading.sandbox import find_sandbox


def main() -> None:
    print(json.dumps(report()))  # noqa: T201 - the answer


def report() -> dict[str, object]:
    """The rules, and the sandbox or the error that there is instead of one."""
    rules = asdict(GradingRules.of_environment())
    parts = {"libraries": image().libraries, "missing": image().missing, "counts_processes": counts_processes()}
    try:
        found = find_sandbox()
    except ServiceError as error:
        return {**rules, **parts, "error": error.message, "fix": error.fix}
    return {**rules, **parts, "bwrap": str(found.bwrap), "version": found.version, "landlock": found.landlock}


if __name__ == "__main__":
    main()
