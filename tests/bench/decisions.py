"""What a decision costs, with few rules and with many, beside cedarpy alone on the same slice."""

import json
import tempfile
import time
from pathlib import Path

import cedarpy
from tests.bench.timing import MICROS, Figure, measured, repeated

from proctor_policy.call import Call, Session, as_record, context_of, given_to, subject_of
from proctor_policy.load import load
from proctor_policy.origins import OriginIndex
from proctor_policy.ruleset import RuleSet

CALL = Call(
    principal="researcher",
    kind="tool_call",
    target="tool_3",
    args_json='{"to":"ops@example.com","amount":12.50,"lines":["a","b"],"n":5}',
    idempotency="safe_to_retry",
    session=Session(tools=frozenset({"search", "read"}), steps=4, tool_calls=4),
    now_micros=1_764_600_000_000_000,
)

SIZES = (10, 100, 10_000)


def rule_set(size: int, folder: Path) -> RuleSet:
    """Return a set of `size` rules, four of them about the call that is timed."""
    rules = [
        '@id("all") permit (principal, action in Action::"tool_call", resource);',
        '@id("own") forbid (principal, action == Action::"tool_3", resource)'
        ' when { context.input.to like "*@evil.example" };',
        '@id("much") forbid (principal, action == Action::"tool_3", resource)'
        " when { context.input.n > 500 };",
        '@id("often") forbid (principal, action == Action::"tool_3", resource)'
        " when { context.session.calls >= 100 };",
    ]
    rules += [
        f'@id("rule-{number}") forbid (principal, action == Action::"other_{number}", resource)'
        " when { context.input.n > 5 };"
        for number in range(size - len(rules))
    ]
    (folder / "rules.cedar").write_text("\n".join(rules))
    return load(folder)


def loading() -> Figure:
    """Return what loading the largest set costs, per rule."""
    size = SIZES[-1]
    micros = []
    with tempfile.TemporaryDirectory() as name:
        for _ in range(3):
            began = time.perf_counter()
            rule_set(size, Path(name))
            micros.append((time.perf_counter() - began) / size * MICROS)
    return measured(f"loading a rule, of {size}", micros)


def origins() -> Figure:
    """Return what looking up four arguments costs in a run that has read 1,000 results."""
    index = OriginIndex()
    index.add_input(json.dumps("please pay ACC-0500"))
    for number in range(1000):
        text = f"Mail {number}: " + "some words of no account " * 20 + f"ACC-{number:04}"
        index.add_result(json.dumps({"body": text, "n": number}), tool="mail", labels=frozenset())
    args = {"to": "ACC-0500", "from": "ACC-9999", "amount": 123456, "note": "thank you very much"}
    return repeated("origins of 4 arguments, 1,000 results", lambda: index.of(args), times=100)


def figures() -> list[Figure]:
    """Return the figures: raw cedarpy first, then ours by number of rules."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        sets = {size: rule_set(size, Path(name)) for size in SIZES}
    chosen = sets[10]._slice(subject_of(CALL))
    subject = subject_of(CALL)
    request = {
        "principal": {"type": subject.principal[0], "id": subject.principal[1]},
        "action": {"type": subject.action[0], "id": subject.action[1]},
        "resource": {"type": subject.resource[0], "id": subject.resource[1]},
        "context": json.loads(json.dumps(context_of(CALL, as_record(given_to(CALL)), ()))),
    }
    found.append(
        repeated(
            "cedarpy alone, the slice of 4 rules",
            lambda: cedarpy.is_authorized(request, chosen.parts[0].parsed, chosen.entities),
            times=1000,
        )
    )
    found += [
        repeated(f"a decision, {size} rules", lambda rules=rules: rules.decide(CALL), times=1000)
        for size, rules in sets.items()
    ]
    return found
