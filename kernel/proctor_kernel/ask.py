"""Questions in, answers out: the only caller of policy, and where the clock is read."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from proctor.wire.words import Decision
from proctor_kernel.core.commands import Answers, Question, Ruling
from proctor_kernel.reading import Readings
from proctor_kernel.store.buckets import Token
from proctor_policy.call import Call, Session
from proctor_policy.gates import RateGate
from proctor_policy.ruleset import RuleSet

_MICROS_PER_SECOND = 1_000_000


Take = Callable[[Sequence[Token], str, int], Sequence[Token]]
"""Takes tokens for a step id at a time; returns those that have no room (`Buckets.take`)."""


class Ask:
    """Answers what the core cannot know. It takes the rule set anew for every question."""

    def __init__(
        self, *, rules: Callable[[], RuleSet], take: Take, now_micros: Callable[[], int]
    ) -> None:
        self._rules = rules
        self._take = take
        self._now_micros = now_micros
        self._readings = Readings()

    def __call__(self, question: Question | None) -> Answers:
        """Return the time, and the ruling of the rules in force when there is a question."""
        now = self._now_micros()
        if question is None:
            return Answers(now)
        verdict = self._rules().decide(self._call(question, now))
        ruling = Ruling(
            decision=Decision(verdict.decision.value),
            reason=verdict.reason,
            rule_ids=verdict.rule_ids,
            ruleset=verdict.ruleset,
            policy_micros=verdict.policy_micros,
            errors=verdict.errors,
            shadow=verdict.shadow,
            labels=verdict.labels,
        )
        limits = [gate for gate in verdict.gates if isinstance(gate, RateGate)]
        if limits and ruling.decision is Decision.ALLOW:
            ruling = self._under_limits(ruling, limits, question, now)
        return Answers(now, ruling)

    def _under_limits(
        self, ruling: Ruling, limits: Sequence[RateGate], question: Question, now: int
    ) -> Ruling:
        """Take a token for each limit; without room in one, the call is limited."""
        tokens = {_token(gate, question): gate for gate in limits}
        full = self._take(tuple(tokens), question.step_id, now)
        if not full:
            return ruling
        gates = [tokens[token] for token in full]
        return replace(
            ruling,
            decision=Decision.RATE_LIMITED,
            reason="; ".join(dict.fromkeys(gate.reason for gate in gates)),
            rule_ids=tuple(sorted(gate.rule_id for gate in gates)),
        )

    def _call(self, question: Question, now: int) -> Call:
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
            origins=lambda: self._readings.of(question),
        )


def _token(gate: RateGate, question: Question) -> Token:
    scope = {"execution": question.execution_id, "agent": question.agent_id, "global": ""}
    bucket = json.dumps([gate.rule_id, gate.per, scope[gate.per]])
    return Token(bucket, gate.limit, gate.window_seconds * _MICROS_PER_SECOND)
