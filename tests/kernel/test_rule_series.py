"""Which rules are counted apart, however many there are and however often they change."""

from prometheus_client import REGISTRY

from proctor.wire.words import Decision
from proctor_kernel.metrics import RULE_DECISIONS
from proctor_kernel.rule_series import OTHER, RULES_MAX, RuleSeries


def counted(rule: str) -> float:
    labels = {"rule": rule, "decision": "allow"}
    return REGISTRY.get_sample_value("proctor_rule_decisions_total", labels) or 0.0


def test_a_rule_that_is_not_in_force_has_no_series_of_its_own() -> None:
    series = RuleSeries()
    series.in_force(["mine"])
    before = counted(OTHER)

    series.decided("mine", Decision.ALLOW)
    series.decided("of-an-agents-bundle", Decision.ALLOW)

    assert counted("mine") == 1
    assert counted("of-an-agents-bundle") == 0
    assert counted(OTHER) == before + 1
    assert series.shows("proctor_rule_decisions", "mine")
    assert not series.shows("proctor_rule_decisions", "of-an-agents-bundle")
    assert series.shows("proctor_rule_decisions", "default")
    assert series.shows("proctor_http_requests", None)


def test_a_rule_that_comes_back_goes_on_counting_where_it_was() -> None:
    series = RuleSeries()
    series.in_force(["edited"])
    series.decided("edited", Decision.ALLOW)
    series.in_force(["another"])
    gone = series.shows("proctor_rule_decisions", "edited")
    series.in_force(["edited", "another"])
    series.decided("edited", Decision.ALLOW)

    assert not gone
    assert counted("edited") == 2


def test_rules_past_the_bound_are_counted_together() -> None:
    series = RuleSeries()
    rules = [f"many-{n:05d}" for n in range(RULES_MAX + 1)]
    series.in_force(rules)
    before = counted(OTHER)

    for rule in rules:
        series.decided(rule, Decision.ALLOW)

    assert counted(rules[-2]) == 1
    assert counted(rules[-1]) == 0
    assert counted(OTHER) == before + 1


def test_sets_that_change_for_ever_do_not_make_series_for_ever() -> None:
    series = RuleSeries()
    for generation in range(6):
        rules = [f"generation-{generation}-{n:05d}" for n in range(RULES_MAX)]
        series.in_force(rules)
        for rule in rules:
            series.decided(rule, Decision.ALLOW)

    shown = {
        sample.labels["rule"].rpartition("-")[0]
        for sample in next(iter(RULE_DECISIONS.collect())).samples
    }
    assert "generation-0" in shown
    assert "generation-5" not in shown
