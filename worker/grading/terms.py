"""What grades a reward term: source or a built-in in a sandbox, or a built-in that does its work elsewhere."""

from pathlib import Path
from typing import Any

from core.builtin_rewards.comparison import FormulaReward
from core.builtin_rewards.outside import CodeTests, Credentials, Http
from core.builtin_rewards.parameters import Builtin
from core.spec import BuiltinReward, RewardTerm
from worker.grading.builtins.code_tests import CodeTestsGrader
from worker.grading.builtins.endpoint import HttpGrader
from worker.grading.client import Grader
from worker.grading.rules import GradingRules

AnyGrader = Grader | HttpGrader | CodeTestsGrader
DEADLINE_S = 60.0
"""Of a run, to load a reward and to grade a batch."""


def grader_of(
    term: RewardTerm, source: Path, *, batch_deadline_s: float = DEADLINE_S, load_deadline_s: float = DEADLINE_S
) -> AnyGrader | None:
    """To be entered. None for a formula, which `worker.grading.gates` computes.

    `source`: where the run directory keeps the term's source, or its credentials (JSON). The deadlines are those of
    what runs in a grading process; the others have their own, and all keep to `until` of `grade`.
    """
    if not isinstance(term, BuiltinReward):
        return Grader(
            source,
            entry_point=term.entry_point,
            form=term.form,
            batch_deadline_s=batch_deadline_s,
            load_deadline_s=load_deadline_s,
        )
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
            return BuiltinGrader(parameters, batch_deadline_s=batch_deadline_s, load_deadline_s=load_deadline_s)


class BuiltinGrader(Grader):
    """A built-in in a grading process: patterns of users can run away, and so can mathematics."""

    _what = "built-in reward"
    _fix = "Ask the operator to run `podium doctor` on the worker."

    def __init__(
        self, parameters: Builtin, *, batch_deadline_s: float = DEADLINE_S, load_deadline_s: float = DEADLINE_S
    ) -> None:
        super().__init__(Path(), batch_deadline_s=batch_deadline_s, load_deadline_s=load_deadline_s)
        self._parameters = parameters

    def _prepare(self) -> None:
        """It was checked when the job was created."""

    def _load_request(self) -> dict[str, Any]:
        fields = self._parameters.model_dump(mode="json")
        return {"kind": "load", "builtin": fields.pop("builtin"), "parameters": fields}


def _credentials(term: BuiltinReward, source: Path) -> Credentials | None:
    return None if term.credentials_sha256 is None else Credentials.model_validate_json(source.read_bytes())
