"""Questions in, answers out: the only caller of policy, and where the clock is read."""

from collections.abc import Callable

from proctor.wire.words import Decision
from proctor_kernel.core.commands import Answers, Question, Ruling
from proctor_policy.call import Call, Session
from proctor_policy.ruleset import RuleSet

_MICROS_PER_SECOND = 1_000_000


class Ask:
    """Answers what the core cannot know. It takes the rule set anew for every question."""

    def __init__(self, *, rules: Callable[[], RuleSet], now_micros: Callable[[], int]) -> None:
        self._rules = rules
        self._now_micros = now_micros

    def __call__(self, question: Question | None) -> Answers:
        """Return the time, and the ruling of the rules in force when there is a question."""
        now = self._now_micros()
        if question is None:
            return Answers(now)
        rules = self._rules()
        verdict = rules.decide(_call(question, now))
        return Answers(
            now,
            Ruling(
                decision=Decision(verdict.decision.value),
                reason=verdict.reason,
                rule_ids=verdict.rule_ids,
                ruleset=verdict.ruleset,
                policy_micros=verdict.policy_micros,
                errors=verdict.errors,
                labels=tuple(sorted(rules.tool_labels(question.target))),
            ),
        )


def _call(question: Question, now: int) -> Call:
    tally = question.tally
    return Call(
        principal=question.agent_id,
        kind=question.kind.value,
        target=question.target,
        args_json=question.args,
        idempotency=question.idempotency.value,
        session=Session(
            tools=tally.tools,
            labels=tally.labels,
            steps=tally.steps,
            tool_calls=tally.tool_calls,
            llm_calls=tally.llm_calls,
            denials=tally.denials,
            tokens=tally.tokens,
            elapsed_seconds=max(0, now - question.started_at) // _MICROS_PER_SECOND,
            calls=tally.calls.get(question.target, 0),
        ),
        now_micros=now,
        input_json=question.input,
    )
