"""What leaves of an event: never a masked value, wherever in the run it comes back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.wire.words import Decision, Idempotency, StepKind
from proctor_kernel.audit.redact import ECHOES_MAX, NO_ECHOES, Redactor
from proctor_kernel.core import event_json, events
from proctor_kernel.core.identity import Json
from proctor_policy import masks

KEY = b"k" * 32


def redactor(text: str) -> Redactor:
    problems: list[Any] = []
    read = masks.read("redact.toml", text, problems)
    assert not problems
    return Redactor(read, KEY)


def proposed(target: str, args: object) -> events.StepProposed:
    text = Json(json.dumps(args))
    return events.StepProposed(
        "s1", StepKind.TOOL_CALL, target, text, "the hash", 0, Idempotency.SAFE_TO_RETRY
    )


def leaving(rules: Redactor, *happened: events.Event) -> list[str]:
    """The payloads of events of one run of agent `a`, whose one step calls `pay`."""
    echoes = NO_ECHOES
    payloads = []
    for event in happened:
        masked, echoes = rules.event(event, agent_id="a", target="pay", echoes=echoes)
        payloads.append(event_json.to_json(masked))
    return payloads


def test_a_hashed_value_is_equal_where_the_value_is_and_needs_the_key() -> None:
    rules = redactor("[[mask]]\nargs = ['card']")
    one, same, other = leaving(
        rules,
        proposed("pay", {"card": "4111", "n": 1}),
        proposed("pay", {"card": "4111"}),
        proposed("pay", {"card": "4222"}),
    )
    elsewhere = leaving(Redactor(rules.masks, b"x" * 32), proposed("pay", {"card": "4111"}))[0]

    def card(payload: str) -> str:
        return str(json.loads(payload)["args"]["card"])

    assert "4111" not in one
    assert "the hash" not in one
    assert json.loads(one)["args"]["n"] == 1
    assert card(one) == card(same)
    assert card(one) != card(other)
    assert card(one) != card(elsewhere)


def test_a_dropped_value_leaves_nothing_behind() -> None:
    rules = redactor("[[mask]]\ntools = ['pay']\nargs = ['card']\nhow = 'drop'")
    paid, read = leaving(
        rules, proposed("pay", {"card": "4111", "n": 1.50}), proposed("read", {"card": "5555"})
    )

    assert json.loads(paid)["args"] == {"n": 1.5}
    assert json.loads(read)["args"] == {"card": "5555"}


@pytest.mark.parametrize(
    "later",
    [
        events.StepDenied("s1", Decision.DENY, "rule x: 'S3CRET' is bad", (), "", 0, ("S3CRET!",)),
        events.StepSucceeded("s1", Json('{"echo": ["so S3CRET it is"], "S3CRET": 1}')),
        events.StepFailed("s1", Json('{"message": "no account S3CRET"}')),
        events.ExecutionFailed("agent_error: KeyError: S3CRET"),
        events.ExecutionCompleted(Json('"paid S3CRET"'), state=Json('["S3CRET"]')),
        events.ApprovalRequested("a1", "s1", Json("[]"), 0, "may it use S3CRET?"),
        events.ApprovalDenied("a1", "s1", "eve", "S3CRET is stolen"),
        events.DispatchFailed("d1", 1, "HTTP 500: S3CRET", 0),
        proposed("read", {"card": "S3CRET"}),
        proposed("chat", {"body": json.dumps({"content": json.dumps({"card": "S3CRET"})})}),
        events.ResourceBound("k", Json('{"token": "S3CRET"}')),
    ],
    ids=lambda event: f"{type(event).__name__}-{getattr(event, 'target', '')}",
)
def test_a_masked_value_that_comes_back_is_masked_too(later: events.Event) -> None:
    rules = redactor("[[mask]]\ntools = ['pay']\nargs = ['card']\nhow = 'drop'")

    assert "S3CRET" in leaving(rules, later)[0] or isinstance(later, events.ResourceBound)
    assert "S3CRET" not in leaving(rules, proposed("pay", {"card": "S3CRET"}), later)[1]


secrets = st.recursive(
    st.text(min_size=4).filter(lambda text: len(text.strip()) >= 4) | st.integers(min_value=1000),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, min_size=1, max_size=3)
    ),
    max_leaves=4,
)


def scalars(value: object) -> list[object]:
    match value:
        case list():
            return [each for item in value for each in scalars(item)]
        case dict():
            return [each for item in value.values() for each in scalars(item)]
        case _:
            return [value]


@given(secret=secrets, how=st.sampled_from(["hash", "drop"]))
def test_no_scalar_of_a_masked_value_leaves_in_any_later_value(secret: object, how: str) -> None:
    rules = redactor(f"[[mask]]\ntools = ['pay']\nargs = ['card']\nhow = '{how}'")
    repeated = proposed("say", {"plain": scalars(secret), "inner": json.dumps(secret)})
    payload = leaving(rules, proposed("pay", {"card": secret}), repeated)[1]
    args = json.loads(payload)["args"]

    # What is left of an inner document is names, numbers and marks of its own.
    for scalar in scalars(secret):
        assert scalar not in args["plain"]
    assert all("masked" in each for each in args["plain"])


def test_a_run_with_too_many_masked_values_says_nothing_more() -> None:
    rules = redactor("[[mask]]\ntools = ['pay']\nargs = ['*']\nhow = 'drop'")
    many = proposed("pay", {str(n): f"value {n}" for n in range(ECHOES_MAX + 1)})
    last = leaving(rules, many, proposed("say", {"text": "whatever"}))[1]

    assert "whatever" not in last
    assert "too many" in last


def test_without_masks_an_event_leaves_as_it_is() -> None:
    event = proposed("pay", {"card": "4111"})
    masked, echoes = Redactor(masks.Masks(), KEY).event(
        event, agent_id="a", target="", echoes=NO_ECHOES
    )

    assert masked is event
    assert echoes is NO_ECHOES
