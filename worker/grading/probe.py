"""`python -m worker.grading.probe`: what isolates reward code on this machine, as JSON; for `podium doctor`."""

import json
from dataclasses import asdict
from pathlib import Path

from core.errors import ServiceError
from worker.grading.image import image
from worker.grading.limits import counts_processes
from worker.grading.process import GradingProcess, OutputTail, ProcessBrokenError
from worker.grading.rules import GradingRules
from worker.grading.sandbox import SandboxedChild, SandboxUnavailable, find_sandbox


def main() -> None:
    print(json.dumps(report()))  # noqa: T201 - the answer


def report() -> dict[str, object]:
    """The rules, and the sandbox or the error that there is instead of one."""
    rules = asdict(GradingRules.of_environment())
    parts = {"libraries": image().libraries, "missing": image().missing, "counts_processes": counts_processes()}
    try:
        found, counting = find_sandbox(), _accounting()
    except ServiceError as error:
        return {**rules, **parts, "error": error.message, "fix": error.fix}
    except ProcessBrokenError as error:
        return {**rules, **parts, "error": str(error), "fix": SandboxUnavailable.default_fix}
    sandbox = {"bwrap": str(found.bwrap), "version": found.version, "landlock": found.landlock}
    return {**rules, **parts, **sandbox, **counting}


def _accounting() -> dict[str, object]:
    """How a sandbox is counted, seen at one that is started for it."""
    process = GradingProcess(Path("/"), OutputTail(), sandboxed=True)
    try:
        child = process.child
        assert isinstance(child, SandboxedChild), "it is sandboxed"
        return {"accounting": child.accounting, "counts_files": child.counts_files}
    finally:
        process.close()


if __name__ == "__main__":
    main()
