"""What is wrong with the rewards of a job, each good by itself: columns, weights, and what they say of each other."""

import difflib
from collections.abc import Iterator, Sequence

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from app.jobs.facts import Facts, KnownBuiltin, KnownReward
from app.jobs.plan import Plan
from app.jobs.resolve import unique_names
from core.builtin_rewards.catalogue import bind_builtin
from core.builtin_rewards.comparison import FormulaReward
from core.builtin_rewards.structure import JsonSchema
from core.errors import Problem
from core.reward_source import bind


def reward_problems(plan: Plan, facts: Facts) -> list[Problem]:
    return [*_missing_columns(facts), *_weights(plan, facts), *problems_among(facts)]


def problems_among(facts: Facts) -> list[Problem]:
    """What is wrong with the rewards whatever the data is: schemas, and what they say of each other."""
    return [*_schemas(facts), *_references(facts)]


def _missing_columns(facts: Facts) -> list[Problem]:
    named = (("training_file", facts.training), ("validation_file", facts.held_out))
    problems = [
        problem
        for field, file in named
        if file is not None
        for reward in facts.rewards
        for problem in _bind(reward, file.columns, field)
    ]
    return list(dict.fromkeys(problems))


def _bind(reward: KnownReward | KnownBuiltin, columns: Sequence[str], field: str) -> list[Problem]:
    if isinstance(reward, KnownBuiltin):
        return bind_builtin(reward.parameters, columns, name=reward.name, field=field)
    return bind(reward.entry, columns, field=field)


def _weights(plan: Plan, facts: Facts) -> Iterator[Problem]:
    if facts.rewards and not any(reward.weight for reward in facts.rewards):
        message = "every weight is 0, so there is nothing to learn"
        yield Problem(f"{plan.field}.rewards", message, "zero_weights", "Give at least one reward a weight.")


def _schemas(facts: Facts) -> Iterator[Problem]:
    for reward in facts.rewards:
        if not (isinstance(reward, KnownBuiltin) and isinstance(reward.parameters, JsonSchema)):
            continue
        try:
            Draft202012Validator.check_schema(reward.parameters.json_schema)
        except SchemaError as error:
            message = f"is not a JSON Schema: at {error.json_path}: {error.message[:200]}"
            fix = "Write it as JSON Schema draft 2020-12."
            yield Problem(f"{reward.field}.schema", message, "invalid_schema", fix)
        except RecursionError:
            message = "is nested too deeply"
            yield Problem(f"{reward.field}.schema", message, "invalid_schema", "Flatten it.")


def _references(facts: Facts) -> Iterator[Problem]:
    """Gates and formulas that name what does not stand before them. Missing rewards are problems already."""
    if facts.problems:
        return
    names = unique_names(facts.rewards)
    for place, reward in enumerate(facts.rewards):
        earlier, later = names[:place], names[place + 1 :]
        if reward.gate is not None:
            yield from _reference(reward.gate.reward, earlier, later, f"{reward.field}.gate.reward")
        if isinstance(reward, KnownBuiltin) and isinstance(reward.parameters, FormulaReward):
            for name in reward.parameters.formula.names:
                yield from _reference(name, earlier, later, f"{reward.field}.expression")


def _reference(name: str, earlier: Sequence[str], later: Sequence[str], field: str) -> Iterator[Problem]:
    if name in earlier:
        return
    if name in later:
        message, fix = f"names `{name}`, which stands after it", f"Move `{name}` before this reward."
    else:
        near = difflib.get_close_matches(name, earlier, n=1)
        there = ", ".join(f"`{one}`" for one in earlier) or "none"
        message = f"names `{name}`, which is no reward before this one"
        fix = f"Did you mean `{near[0]}`?" if near else f"Before it stand: {there}."
    yield Problem(field, message, "unknown_reward_name", fix)
