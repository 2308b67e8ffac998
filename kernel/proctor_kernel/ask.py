"""Questions in, answers out: the only caller of policy, and where the clock is read."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from proctor.wire.words import Decision
from proctor_kernel import world
from proctor_kernel.bundles import Bundles
from proctor_kernel.core.approvals import Gate
from proctor_kernel.core.commands import Answers, Question, Ruling
from proctor_kernel.reading import Readings
from proctor_kernel.store.buckets import Full, Token
from proctor_policy.call import Call, Session
from proctor_policy.gates import ApprovalGate, RateGate
from proctor_policy.ruleset import RuleSet
from proctor_policy.verdict import Verdict, together

APPROVAL_SECONDS: Final = 15 * 60
"""How long people have to decide, unless the rule says (protocol 7)."""

_MICROS_PER_SECOND: Final = 1_000_000

Take = Callable[[Sequence[Token], str, int], Awaitable[Sequence[Full]]]
"""Takes tokens for a step id at a time; returns those that have no room (`Buckets.take`)."""


class Ask:
    """Answers what the core cannot know. It takes the rule set anew for every question."""

    def __init__(
        self,
        *,
        rules: Callable[[], RuleSet],
        take: Take,
        now_micros: Callable[[], int],
        bundles: Bundles | None = None,
        approval_seconds: int = APPROVAL_SECONDS,
    ) -> None:
        self._rules = rules
        self._take = take
        self._now_micros = now_micros
        self._bundles = bundles or Bundles()
        self._approval_micros = approval_seconds * _MICROS_PER_SECOND
        self._readings = Readings()

    async def __call__(self, question: Question | None) -> Answers:
        """Return the time, and the ruling of the rules in force when there is a question."""
        now = self._now_micros()
        if question is None:
            return Answers(now, world.new_id())
        verdict = self._verdict(question, now)
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
        if ruling.decision is Decision.REQUIRE_APPROVAL:
            ruling = self._before_people(ruling, verdict, question)
        if ruling.decision is Decision.ALLOW:
            limits = [gate for gate in verdict.gates if isinstance(gate, RateGate)]
            if limits:
                ruling = await self._under_limits(ruling, limits, question, now)
        return Answers(now, world.new_id(), ruling)

    def _verdict(self, question: Question, now: int) -> Verdict:
        files = self._rules()
        call = self._call(question, now)
        verdict = files.decide(call)
        bundle = self._bundles.beside(files, question.agent_id, question.bundle)
        return verdict if bundle is None else together(verdict, bundle.decide(call))

    def _before_people(self, ruling: Ruling, verdict: Verdict, question: Question) -> Ruling:
        """Name the gates that people have not lifted for this call; without any, it may run."""
        lifted = {gate.asked for gate in question.lifted}
        gates = tuple(
            gate
            for gate in map(self._gate, verdict.gates)
            if gate is not None and gate.asked not in lifted
        )
        if gates:
            return replace(ruling, gates=gates)
        return replace(ruling, decision=Decision.ALLOW)

    def _gate(self, gate: ApprovalGate | RateGate) -> Gate | None:
        if not isinstance(gate, ApprovalGate):
            return None
        seconds = gate.timeout_seconds
        return Gate(
            gate.rule_id,
            gate.reason,
            gate.approvers,
            gate.quorum,
            self._approval_micros if seconds is None else seconds * _MICROS_PER_SECOND,
            gate.message,
        )

    async def _under_limits(
        self, ruling: Ruling, limits: Sequence[RateGate], question: Question, now: int
    ) -> Ruling:
        """Take a token for each limit; without room in one, the call is limited."""
        tokens = {_token(gate, question): gate for gate in limits}
        full = await self._take(tuple(tokens), question.step_id, now)
        if not full:
            return ruling
        gates = [tokens[each.token] for each in full]
        until = max(each.until for each in full)
        may_wait = question.may_wait and all(
            each.until - now <= tokens[each.token].wait_seconds * _MICROS_PER_SECOND
            for each in full
        )
        return replace(
            ruling,
            decision=Decision.RATE_LIMITED,
            reason="; ".join(dict.fromkeys(gate.reason for gate in gates)),
            rule_ids=tuple(sorted(gate.rule_id for gate in gates)),
            wait_until=until if may_wait else None,
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
            user=question.user,
            origins=lambda: self._readings.of(question),
        )


def _token(gate: RateGate, question: Question) -> Token:
    scope = {"execution": question.execution_id, "agent": question.agent_id, "global": ""}
    bucket = json.dumps([gate.rule_id, gate.per, scope[gate.per]])
    return Token(bucket, gate.limit, gate.window_seconds * _MICROS_PER_SECOND)
