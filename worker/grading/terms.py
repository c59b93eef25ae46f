"""What grades a reward term: source or a built-in in a sandbox, or a built-in that does its work elsewhere."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from core.builtin_rewards.comparison import FormulaReward
from core.builtin_rewards.outside import CodeTests, Credentials, Http
from core.builtin_rewards.parameters import Builtin
from core.spec import BuiltinReward, RewardTerm
from worker.grading.builtins.code_tests import CodeTestsGrader
from worker.grading.builtins.endpoint import HttpGrader
from worker.grading.client import Grader, GraderFailed
from worker.grading.process import GradingProcess, ProcessBrokenError
from worker.grading.rules import GradingRules

AnyGrader = Grader | HttpGrader | CodeTestsGrader


def grader_of(term: RewardTerm, source: Path) -> AnyGrader | None:
    """To be entered. None for a formula, which `worker.grading.gates` computes.

    `source`: where the run directory keeps the term's source, or its credentials (JSON).
    """
    if not isinstance(term, BuiltinReward):
        return Grader(source, entry_point=term.entry_point, form=term.form)
    match term.parameters:
        case FormulaReward():
            return None
        case Http() as parameters:
            rules = GradingRules.of_environment()
            whole = parameters.rejoined(_credentials(term, source))
            return HttpGrader(whole, allow_private=rules.allow_private_reward_urls)
        case CodeTests() as parameters:
            return CodeTestsGrader(parameters)
        case parameters:
            return BuiltinGrader(parameters)


class BuiltinGrader(Grader):
    """A built-in in a grading process: patterns of users can run away, and so can mathematics."""

    def __init__(self, parameters: Builtin) -> None:
        super().__init__(Path())
        fields = parameters.model_dump(mode="json")
        self._load: Mapping[str, Any] = {"kind": "load", "builtin": fields.pop("builtin"), "parameters": fields}

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="podium-grader-", ignore_cleanup_errors=True)
        try:
            self._process = self._start()
        except ProcessBrokenError as error:
            self.close()
            message = f"Loading the built-in reward failed: {error}. {self.output.text()[-2000:]}".strip()
            raise GraderFailed(message, fix="Ask the operator to run `podium doctor` on the worker.") from error
        except BaseException:
            self.close()
            raise
        return self

    def _start(self) -> GradingProcess:
        assert self._folder is not None, "enter the grader first"
        process = GradingProcess(Path(self._folder.name), self.output)
        try:
            process.ask(self._load, self._load_deadline_s)
        except BaseException:
            process.close()
            raise
        return process


def _credentials(term: BuiltinReward, source: Path) -> Credentials | None:
    return None if term.credentials_sha256 is None else Credentials.model_validate_json(source.read_bytes())
