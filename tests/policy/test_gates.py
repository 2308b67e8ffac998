"""Gates: approval, rate limit, shadow. Each a forbid that something lifts."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.conftest import Write, a_call

from proctor_policy.gates import ApprovalGate, RateGate, duration_seconds, limit_of
from proctor_policy.load import load
from proctor_policy.problem import RulesInvalid
from proctor_policy.ruleset import RuleSet

Rules = Callable[..., RuleSet]

PERMIT_ALL = '@id("all") permit (principal, action, resource);'
PAY = 'forbid (principal, action == Action::"pay", resource)'


def test_an_approval_gate_asks_for_its_people(rules: Rules) -> None:
    verdict = rules(
        PERMIT_ALL,
        '@id("big") @gate("approval") @approvers("finance, ada") @quorum("2") @timeout("30m")'
        f' @message("Pay this?") @reason("large payments need two people") {PAY}'
        " when { context.input.amount > 100 };",
    ).decide(a_call("pay", '{"amount":500}'))

    assert verdict.decision == "require_approval"
    assert verdict.reason == "large payments need two people"
    assert verdict.rule_ids == ("big",)
    assert verdict.gates == (
        ApprovalGate(
            "big", "large payments need two people", ("finance", "ada"), 2, 1800, "Pay this?"
        ),
    )


def test_an_approval_gate_that_does_not_match_asks_nobody(rules: Rules) -> None:
    verdict = rules(
        PERMIT_ALL, f'@id("big") @gate("approval") {PAY} when {{ context.input.amount > 100 }};'
    ).decide(a_call("pay", '{"amount":5}'))

    assert (verdict.decision, verdict.gates) == ("allow", ())


def test_several_approval_gates_ask_for_all_their_approvers(rules: Rules) -> None:
    verdict = rules(
        PERMIT_ALL,
        f'@id("b") @gate("approval") @approvers("legal") @reason("law") {PAY};',
        f'@id("a") @gate("approval") @approvers("finance") @reason("money") {PAY};',
    ).decide(a_call("pay"))

    assert verdict.rule_ids == ("a", "b")
    assert verdict.reason == "money; law"
    assert [gate.approvers for gate in verdict.gates if isinstance(gate, ApprovalGate)] == [
        ("finance",),
        ("legal",),
    ]


def test_nobody_can_lift_a_plain_forbid_or_the_lack_of_a_permit(rules: Rules) -> None:
    gate = f'@id("ask") @gate("approval") {PAY};'

    forbidden = rules(PERMIT_ALL, gate, f'@id("never") @reason("never") {PAY};')
    unpermitted = rules(gate)

    assert forbidden.decide(a_call("pay")).rule_ids == ("never",)
    assert unpermitted.decide(a_call("pay")).rule_ids == ("default",)


def test_a_rate_gate_says_which_bucket_must_have_room(rules: Rules) -> None:
    verdict = rules(
        PERMIT_ALL, f'@id("often") @gate("rate_limit") @limit("5/1m") @per("agent") {PAY};'
    ).decide(a_call("pay"))

    assert verdict.decision == "allow"
    assert verdict.rule_ids == ("all",)
    assert verdict.gates == (RateGate("often", "forbidden by rule often", 5, 60, "agent"),)


def test_a_shadow_rule_is_recorded_and_never_enforced(rules: Rules) -> None:
    loaded = rules(
        PERMIT_ALL,
        f'@id("trial") @gate("shadow") {PAY} when {{ context.input.amount > 100 }};',
    )

    assert loaded.decide(a_call("pay", '{"amount":500}')).shadow == ("trial",)
    assert loaded.decide(a_call("pay", '{"amount":5}')).shadow == ()
    failed = loaded.decide(a_call("pay", '{"amount":"x"}'))
    assert (failed.decision, failed.errors[0][:6]) == ("allow", "trial:")


@pytest.mark.parametrize("gate", ['@gate("approval")', '@gate("rate_limit") @limit("1/1m")'])
def test_a_gate_that_fails_to_evaluate_denies(rules: Rules, gate: str) -> None:
    verdict = rules(
        PERMIT_ALL, f'@id("big") {gate} {PAY} when {{ context.input.amount > 100 }};'
    ).decide(a_call("pay", '{"amount":["500"]}'))

    assert (verdict.decision, verdict.rule_ids) == ("deny", ("big",))


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        pytest.param(
            '@gate("aproval")', "unknown gate 'aproval'; did you mean 'approval'?", id="a"
        ),
        pytest.param("@gate", "annotation 'gate' says nothing", id="gate without a value"),
        pytest.param('@limit("5/1m")', "annotation 'limit' goes with a gate", id="limit alone"),
        pytest.param(
            '@gate("shadow") @approvers("x")', "annotation 'approvers' goes with", id="other gate"
        ),
        pytest.param('@gate("rate_limit")', "gate 'rate_limit' needs @limit", id="no limit"),
        pytest.param('@gate("rate_limit") @limit("5")', "'5' is not a limit", id="no window"),
        pytest.param('@gate("rate_limit") @limit("0/1m")', "from 1 to", id="no calls"),
        pytest.param('@gate("rate_limit") @limit("5/1x")', "'1x' is not a duration", id="unit"),
        pytest.param('@gate("rate_limit") @limit("5/0s")', "longer than nothing", id="no time"),
        pytest.param('@gate("rate_limit") @limit("5/999d")', "at most 366 days", id="too long"),
        pytest.param(
            '@gate("rate_limit") @limit("5/1m") @per("user")', "per must be", id="unknown per"
        ),
        pytest.param('@gate("approval") @quorum("two")', "quorum must be", id="quorum"),
        pytest.param('@gate("approval") @quorum("0")', "quorum must be", id="quorum of none"),
        pytest.param('@gate("approval") @timeout("soon")', "'soon' is not a duration", id="when"),
        pytest.param('@gate("approval") @approver("x")', "did you mean 'approvers'?", id="near"),
    ],
)
def test_a_gate_that_is_wrong_is_a_problem_with_file_and_line(
    write: Write, annotations: str, message: str
) -> None:
    folder = write(f'\n@id("a") {annotations} {PAY};')

    with pytest.raises(RulesInvalid) as caught:
        load(folder)

    assert any(
        str(problem).startswith(f"{folder}/rules.cedar:2: ") and message in str(problem)
        for problem in caught.value.problems
    ), caught.value


def test_a_gate_on_a_permit_is_refused(write: Write) -> None:
    with pytest.raises(RulesInvalid, match="a gate on a permit"):
        load(write('@id("a") @gate("approval") permit (principal, action, resource);'))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("1h30m", 5400), ("2d", 172_800), (" 1d2h3m4s ", 93_784)],
)
def test_durations_are_read(text: str, seconds: int) -> None:
    assert duration_seconds(text) == seconds


@given(st.text(max_size=12) | st.text(alphabet="0123456789dhms/ ", max_size=12))
def test_no_text_does_worse_than_being_no_duration_or_limit(text: str) -> None:
    for read in (duration_seconds, limit_of):
        try:
            read(text)
        except ValueError:
            continue
