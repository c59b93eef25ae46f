"""Why a run did not learn, or will not: rules over its own numbers, with evidence, a fix, and what to try next.

A rule speaks only of what is certain in the numbers: shares are means over the end of the run, changes are at least
`CERTAIN` standard errors, and what could be hacking needs a rise of the reward first. A healthy run has no findings.
`tests/recordings` holds recorded runs, healthy and sick, and counts false alarms and misses.
"""

from core.learning import exploits, policy, signal
from core.learning.finding import LearningFinding, Severity
from core.learning.numbers import RunNumbers


def learning_findings(run: RunNumbers) -> list[LearningFinding]:
    """The gravest first, then the earliest."""
    rules = (*policy.RULES, *signal.RULES, *exploits.RULES)
    found = [finding for rule in rules for finding in rule(run)]
    order = list(Severity)
    return sorted(found, key=lambda one: (order.index(one.severity), one.since_step or 0))
