"""The dashboard and the alerts ask for what the service shows, and all of it is explained."""

import asyncio
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.support.http_port import HttpPort
from tests.support.server import TOKEN, running

from proctor.wire.calls import StepSubmission
from proctor.wire.words import Idempotency, StepKind
from proctor_kernel import metrics

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
DASHBOARD: Final = DEPLOY / "grafana" / "proctor.json"
ALERTS: Final = DEPLOY / "prometheus" / "alerts.yaml"
ROWS: Final = [
    "Decisions",
    "Latency",
    "Runs and queue",
    "Approvals",
    "Rules",
    "Export",
    "HTTP",
]
RULES: Final = """
@id("all") permit (principal, action, resource);
@id("no") forbid (principal, action == Action::"delete", resource);
@id("trial") @gate("shadow") forbid (principal, action == Action::"search", resource);
"""

# What Prometheus and Grafana themselves add.
TARGET_LABELS: Final = frozenset({"job", "instance"})
WORDS: Final = frozenset(
    [
        "sum",
        "min",
        "max",
        "count",
        "by",
        "without",
        "rate",
        "increase",
        "deriv",
        "topk",
        "histogram_quantile",
        "time",
        "vector",
        "offset",
        "and",
        "or",
        "unless",
        "on",
        "ignoring",
        "bool",
        "group_left",
        "group_right",
    ]
)
_TOKEN: Final = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*")|(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<duration>\[[^\]]+\])
      |(?P<number>\d+(?:\.\d+)?[smhd]?)|(?P<space>\s+)|(?P<mark>=~|!~|!=|==|>=|<=|[-+*/(){},=<>])""",
    re.VERBOSE,
)


@dataclass
class Asked:
    """What an expression names."""

    metrics: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)


def tokens(expression: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        assert match is not None, f"not PromQL at {expression[at:]!r}"
        at = match.end()
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match.group()))
    return found


def asked(expression: str) -> Asked:
    """Return the metrics and labels that an expression names, its brackets being in order."""
    what = Asked()
    opened: list[str] = []
    before = ""
    for kind, text in tokens(expression):
        if text in "({":
            opened.append("by" if before in ("by", "on", "ignoring", "without") else text)
        elif text in ")}":
            assert opened, expression
            assert (opened.pop() == "{") == (text == "}"), expression
        elif kind == "name" and opened and opened[-1] in ("by", "{"):
            what.labels.add(text)
        elif kind == "name" and text not in WORDS:
            what.metrics.add(text)
        before = text
    assert not opened, expression
    return what


def panels() -> list[dict[str, Any]]:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    return list(board["panels"])


def plain(expression: str) -> str:
    """Put in what Grafana puts in."""
    return expression.replace("$__rate_interval", "5m").replace("$job", ".*")


def expressions() -> list[Any]:
    of_panels = [
        pytest.param(plain(target["expr"]), id=f"{panel['title']}/{target['refId']}")
        for panel in panels()
        for target in panel.get("targets", ())
    ]
    of_alerts = [pytest.param(rule["expr"], id=rule["alert"]) for rule in alerts()]
    return of_panels + of_alerts


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


Families = dict[str, tuple[str, set[str]]]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Families:
    """Each series of a server that was asked something -> its family's type, and its labels."""
    folder = tmp_path_factory.mktemp("server")
    rules = folder / "rules"
    rules.mkdir()
    (rules / "rules.cedar").write_text(RULES)
    with running("serve", folder=folder, database=str(folder / "p.db"), rules=rules) as server:
        asyncio.run(_use(server.url))
        text = httpx2.get(f"{server.url}/metrics").text
    found: Families = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            _, labels = found.setdefault(sample.name, (family.type, set()))
            labels |= set(sample.labels)
    # A server without sinks has no series of sinks, though it declares them.
    for metric in (
        metrics.EXPORT_LAG,
        metrics.EXPORT_FAILING,
        metrics.EXPORTED,
        metrics.EXPORT_REFUSED,
        metrics.EXPORT_FAILURES,
    ):
        (declared,) = metric.collect()
        suffix = "_total" if declared.type == "counter" else ""
        assert f"# HELP {declared.name}{suffix} " in text
        found[declared.name + suffix] = (declared.type, {"sink"})
    return found


def family_of(name: str, kind: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", name) if kind == "histogram" else name


async def _use(url: str) -> None:
    async with httpx2.AsyncClient(
        base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}
    ) as http:
        await http.post("/v0/agents", json={"id": "a", "secret": "secret"})
        await http.post("/v0/executions", json={"agent_id": "a"})
    port = HttpPort([url], "a", "secret")
    claimed = await port.claim(wait_seconds=20)
    assert claimed is not None
    for target in ("search", "delete"):
        call = StepSubmission(StepKind.TOOL_CALL, target, "{}", Idempotency.SAFE_TO_RETRY)
        await port.submit_step(claimed.execution_id, claimed.lease, call)
    await port.aclose()


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_names_metrics_and_labels_that_are_there(
    expression: str, shown: Families
) -> None:
    what = asked(expression)

    assert what.metrics or "vector" in expression
    assert what.metrics <= set(shown)
    labels = set().union(*(shown[name][1] for name in what.metrics))
    assert what.labels <= labels | TARGET_LABELS


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_parses(expression: str) -> None:
    promql_parser = pytest.importorskip("promql_parser")

    promql_parser.parse(expression)


@pytest.mark.parametrize(
    "expression",
    [
        pytest.param('sum(rate(proctor_no_such_total{kind="x"}[5m]))', id="metric"),
        pytest.param('proctor_queue_depth{ruel="x"}', id="label"),
    ],
)
def test_what_is_not_there_would_be_noticed(expression: str, shown: Families) -> None:
    what = asked(expression)

    labels = set().union(*(shown[name][1] for name in what.metrics & set(shown)))
    assert not (what.metrics <= set(shown) and what.labels <= labels | TARGET_LABELS)


def test_every_metric_is_explained_with_its_type_and_labels(shown: Families) -> None:
    explained: dict[str, tuple[str, frozenset[str]]] = {}
    for line in (DEPLOY / "metrics.md").read_text("utf-8").splitlines():
        if line.startswith("| `proctor_"):
            name, kind, labels, meaning = (cell.strip() for cell in line.strip("|").split("|"))
            assert meaning
            explained[name.strip("`")] = (kind, frozenset(re.findall(r"`(\w+)`", labels)))

    there: dict[str, tuple[str, frozenset[str]]] = {}
    for name, (kind, labels) in shown.items():
        if name.startswith("proctor_"):
            _, before = there.get(family_of(name, kind), ("", frozenset()))
            there[family_of(name, kind)] = (kind, before | labels - {"le"})
    assert explained == there


def test_every_metric_is_on_the_dashboard(shown: Families) -> None:
    queries = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    seen = {name for query in queries for name in asked(plain(query)).metrics}

    ours = {name: kind for name, (kind, _) in shown.items() if name.startswith("proctor_")}
    assert {family_of(name, kind) for name, kind in ours.items()} == {
        family_of(name, ours[name]) for name in seen if name in ours
    }


def test_the_dashboard_can_be_imported() -> None:
    board = json.loads(DASHBOARD.read_text("utf-8"))

    assert board["id"] is None  # Grafana gives it one
    assert board["uid"] == "proctor"
    assert board["schemaVersion"] >= 39
    variables = {each["name"]: each for each in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert [each["title"] for each in panels() if each["type"] == "row"] == ROWS
    ids = [each["id"] for each in panels()]
    assert len(set(ids)) == len(ids)


def test_the_panels_say_what_they_show_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["fieldConfig"]["defaults"]["unit"]
            for target in panel["targets"]:
                assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in alerts()]

    assert len(set(names)) == len(names)
    for rule in alerts():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert all(text.strip() for text in rule["annotations"].values())
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))
