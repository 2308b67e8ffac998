import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from proctor_policy.load import load

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
KUBERNETES: Final = DEPLOY / "kubernetes"
EXAMPLE: Final = "secret.example.yaml"

RULES_FOLDER: Final = "/etc/proctor/rules"
SECRETS: Final = ("PROCTOR_DATABASE", "PROCTOR_SECRET_KEY", "PROCTOR_BOOTSTRAP_TOKEN")

Map = dict[str, Any]


def read(path: Path) -> Map:
    documents = list(yaml.safe_load_all(path.read_text("utf-8")))
    assert len(documents) == 1
    assert isinstance(documents[0], dict)
    return documents[0]


def manifest(name: str) -> Map:
    return read(KUBERNETES / name)


@pytest.fixture
def pod() -> Map:
    spec: Map = manifest("deployment.yaml")["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def container(pod: Map) -> Map:
    (only,) = pod["containers"]
    assert isinstance(only, dict)
    return only


@pytest.fixture
def compose() -> Map:
    return read(DEPLOY / "compose.yaml")


def dockerfile() -> list[tuple[str, str]]:
    # Return each instruction and its arguments, continued lines joined.
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.split("\n"))]


def runtime() -> list[tuple[str, str]]:
    # Return the instructions of the stage that the image is.
    steps = dockerfile()
    last = max(at for at, (name, _) in enumerate(steps) if name == "FROM")
    return steps[last:]


def only(name: str) -> str:
    (found,) = (rest for each, rest in runtime() if each == name)
    return found


def mount(folder: Path, data: dict[str, str]) -> None:
    # Lay files out as the kubelet does: links to links, so that an edit is one swap.
    version = folder / "..2026_01_01"
    version.mkdir(parents=True)
    (folder / "..data").symlink_to(version.name)
    for name, text in data.items():
        (version / name).write_text(text, "utf-8")
        (folder / name).symlink_to(os.path.join("..data", name))


# All files


@pytest.mark.parametrize(
    "path", sorted(DEPLOY.rglob("*.yaml")), ids=lambda path: str(path.relative_to(DEPLOY))
)
def test_every_file_is_one_document(path: Path) -> None:
    assert read(path)


def test_the_image_has_the_version_of_the_project_everywhere(compose: Map) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]

    (image,) = manifest("kustomization.yaml")["images"]

    assert image["newTag"] == version
    assert compose["services"]["kernel"]["image"] == f"proctor:{version}"


# The image


def test_the_image_does_not_run_as_root() -> None:
    assert only("USER") == "10001:10001"


def test_the_image_starts_without_a_shell() -> None:
    assert json.loads(only("ENTRYPOINT")) == ["proctor"]
    assert json.loads(only("CMD")) == [
        "serve",
        "--host",
        "0.0.0.0",
        "--port",
        "8080",
        "--rules",
        RULES_FOLDER,
    ]
    assert only("EXPOSE") == "8080"


def test_the_image_asks_for_its_health_without_a_shell_and_with_python_that_parses() -> None:
    command = json.loads(only("HEALTHCHECK").partition("CMD ")[2])

    assert command[0] == "python"
    assert "http://127.0.0.1:8080/v0/health" in command[-1]
    compile(command[-1], "HEALTHCHECK", "exec")


def test_the_image_runs_on_a_read_only_file_system() -> None:
    assert "PYTHONDONTWRITEBYTECODE=1" in only("ENV")
    assert "HOME=/tmp" in only("ENV")
    installs = [rest for name, rest in dockerfile() if name == "RUN" and "uv pip install" in rest]
    assert installs
    assert all("--compile-bytecode" in each for each in installs)


def test_whatever_is_downloaded_for_the_image_is_held_to_hashes() -> None:
    runs = [rest for name, rest in dockerfile() if name == "RUN"]
    steps = [step.strip() for run in runs for step in run.split("&&")]
    installs = [step for step in steps if re.search(r"\bpip install\b", step)]

    assert len(installs) == 3
    assert all("--require-hashes" in step or "--offline" in step for step in installs)
    (wheel,) = (step for step in steps if "pip wheel" in step)
    assert {"--no-deps", "--no-build-isolation"} <= set(wheel.split())


def test_the_build_may_read_what_it_copies_and_nothing_of_the_working_copy_besides() -> None:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    allowed = {pattern[1:] for pattern in patterns if pattern.startswith("!")}

    copied = {
        source.removesuffix("/")
        for name, rest in dockerfile()
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }

    assert patterns[0] == "*"
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)


# Compose


def test_compose_locks_the_kernel_in(compose: Map) -> None:
    kernel = compose["services"]["kernel"]

    assert kernel["user"] == "10001:10001"
    assert kernel["read_only"] is True
    assert [each.partition(":")[0] for each in kernel["tmpfs"]] == ["/tmp"]
    assert not kernel.get("cap_add")


def test_compose_takes_capabilities_and_new_privileges_from_every_service(compose: Map) -> None:
    for service in compose["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert not service.get("privileged")


def test_compose_mounts_the_rules_of_this_repository_read_only(compose: Map) -> None:
    (rules,) = compose["services"]["kernel"]["volumes"]

    assert rules["read_only"] is True
    assert rules["target"] == RULES_FOLDER
    assert (DEPLOY / rules["source"]).resolve() == ROOT / "rules"
    assert load(DEPLOY / rules["source"]).policies


def test_compose_waits_for_a_database_that_answers(compose: Map) -> None:
    services = compose["services"]

    assert services["kernel"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert "pg_isready" in services["postgres"]["healthcheck"]["test"]
    assert services["postgres"]["image"] == "postgres:16"
    (volume,) = services["postgres"]["volumes"]
    assert volume.partition(":")[0] in compose["volumes"]


def test_compose_keeps_the_database_and_the_collector_off_the_outside(compose: Map) -> None:
    services = compose["services"]

    for name in ("postgres", "collector"):
        assert "ports" not in services[name]
        assert all(compose["networks"][each]["internal"] for each in services[name]["networks"])
    assert all(port.startswith("127.0.0.1:") for port in services["kernel"]["ports"])


def test_compose_stops_with_a_message_while_a_secret_is_unset(compose: Map) -> None:
    services = compose["services"]
    values = [
        services["kernel"]["environment"]["PROCTOR_DATABASE"],
        services["kernel"]["environment"]["PROCTOR_SECRET_KEY"],
        services["postgres"]["environment"]["POSTGRES_PASSWORD"],
    ]

    # With the colon: an empty value is unset too.
    assert all(re.search(r"\$\{[A-Z_]+:\?set it in deploy/\.env[^}]*\}", each) for each in values)


def test_an_unset_bootstrap_token_is_absent_in_compose_and_not_empty(compose: Map) -> None:
    assert compose["services"]["kernel"]["environment"]["PROCTOR_BOOTSTRAP_TOKEN"] is None


def test_the_example_of_settings_names_all_that_compose_asks_for_and_holds_no_secret() -> None:
    text = (DEPLOY / ".env.example").read_text("utf-8")
    asked = set(re.findall(r"\$\{([A-Z_]+)", (DEPLOY / "compose.yaml").read_text("utf-8")))

    shown = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", text, re.MULTILINE))

    assert asked | {"PROCTOR_BOOTSTRAP_TOKEN"} == set(shown)
    assert {name for name, value in shown.items() if value} == {"PROCTOR_WORKERS"}


def test_files_with_real_secrets_cannot_be_committed() -> None:
    ignored = (DEPLOY / ".gitignore").read_text("utf-8").splitlines()

    assert {".env", "kubernetes/secret.yaml"} <= set(ignored)


def test_the_collector_takes_otlp_and_prints_it() -> None:
    collector = read(DEPLOY / "collector.yaml")

    protocols = collector["receivers"]["otlp"]["protocols"]
    assert protocols["grpc"]["endpoint"] == "0.0.0.0:4317"
    assert protocols["http"]["endpoint"] == "0.0.0.0:4318"
    for pipeline in collector["service"]["pipelines"].values():
        assert set(pipeline["receivers"]) <= set(collector["receivers"])
        assert set(pipeline["exporters"]) <= set(collector["exporters"])
        assert pipeline["processors"] == ["memory_limiter", "batch"]
        assert set(pipeline["processors"]) <= set(collector["processors"])


# Kubernetes


def test_all_manifests_but_the_example_of_a_secret_are_applied() -> None:
    there = {path.name for path in KUBERNETES.glob("*.yaml")}

    assert set(manifest("kustomization.yaml")["resources"]) == there - {
        EXAMPLE,
        "kustomization.yaml",
    }


def test_all_manifests_are_for_one_namespace() -> None:
    for name in manifest("kustomization.yaml")["resources"]:
        metadata = manifest(name)["metadata"]
        assert metadata.get("namespace", metadata["name"]) == "proctor"
    assert manifest("namespace.yaml")["metadata"]["name"] == "proctor"


def test_the_namespace_enforces_the_strictest_standard_for_pods() -> None:
    labels = manifest("namespace.yaml")["metadata"]["labels"]

    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_two_replicas_run_and_a_rollout_never_leaves_fewer() -> None:
    spec = manifest("deployment.yaml")["spec"]

    assert spec["replicas"] == 2
    assert spec["strategy"]["type"] == "RollingUpdate"
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert spec["strategy"]["rollingUpdate"]["maxSurge"] > 0


@pytest.mark.parametrize("name", ["poddisruptionbudget.yaml", "networkpolicy.yaml", "service.yaml"])
def test_what_is_about_the_pods_selects_them(name: str) -> None:
    spec = manifest(name)["spec"]
    selector = spec.get("podSelector") or spec["selector"]
    labels = manifest("deployment.yaml")["spec"]["template"]["metadata"]["labels"]

    wanted = selector.get("matchLabels", selector)

    assert wanted
    assert wanted.items() <= labels.items()


def test_the_deployment_selects_and_spreads_its_own_pods(pod: Map) -> None:
    spec = manifest("deployment.yaml")["spec"]
    labels = spec["template"]["metadata"]["labels"]

    assert spec["selector"]["matchLabels"].items() <= labels.items()
    keys = [each["topologyKey"] for each in pod["topologySpreadConstraints"]]
    assert keys == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    for each in pod["topologySpreadConstraints"]:
        assert each["labelSelector"]["matchLabels"].items() <= labels.items()


def test_a_drain_leaves_one_pod() -> None:
    assert manifest("poddisruptionbudget.yaml")["spec"]["minAvailable"] == 1


def test_the_pod_does_not_run_as_root(pod: Map, container: Map) -> None:
    security = pod["securityContext"]

    assert security["runAsNonRoot"] is True
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == only("USER")
    assert not {"runAsUser", "runAsNonRoot"} & set(container["securityContext"])


def test_the_container_can_write_nothing_but_its_tmp(pod: Map, container: Map) -> None:
    writable = [each["name"] for each in container["volumeMounts"] if not each.get("readOnly")]

    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert writable == ["tmp"]
    (tmp,) = (each for each in pod["volumes"] if each["name"] == "tmp")
    assert tmp["emptyDir"]["sizeLimit"]


def test_the_container_has_no_privileges(pod: Map, container: Map) -> None:
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False


def test_services_of_the_namespace_set_none_of_the_kernels_settings(pod: Map) -> None:
    assert pod["enableServiceLinks"] is False


def test_probes_ask_for_health_and_only_traffic_waits_for_readiness(container: Map) -> None:
    paths = {
        name: container[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "liveness", "readiness")
    }

    assert paths == {"startup": "/v0/health", "liveness": "/v0/health", "readiness": "/v0/ready"}


def test_one_port_goes_through_the_container_the_service_and_the_policy(container: Map) -> None:
    (port,) = container["ports"]
    (service,) = manifest("service.yaml")["spec"]["ports"]
    (ingress,) = manifest("networkpolicy.yaml")["spec"]["ingress"]

    assert port["containerPort"] == 8080
    assert service["targetPort"] == port["name"]
    assert service["port"] == 8080
    assert [each["port"] for each in ingress["ports"]] == [8080]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == port["name"]
    assert container["args"] == json.loads(only("CMD"))


def test_a_pod_that_ends_has_time_for_its_calls(pod: Map, container: Map) -> None:
    command = container["lifecycle"]["preStop"]["exec"]["command"]

    assert pod["terminationGracePeriodSeconds"] == 30
    assert command[0] == "python"
    compile(command[-1], "preStop", "exec")


def test_memory_is_bounded_and_a_share_of_the_processor_is_kept(container: Map) -> None:
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert "memory" in container["resources"]["limits"]


def test_rules_are_mounted_as_a_folder_so_that_edits_arrive(pod: Map, container: Map) -> None:
    (volume,) = (each for each in pod["volumes"] if each["name"] == "rules")
    (mounted,) = (each for each in container["volumeMounts"] if each["name"] == "rules")

    assert volume["configMap"]["name"] == manifest("rules-configmap.yaml")["metadata"]["name"]
    assert mounted["mountPath"] == RULES_FOLDER
    assert mounted["readOnly"] is True
    assert not {"subPath", "subPathExpr"} & set(mounted)


def test_the_rules_in_the_config_map_load_as_the_kubelet_lays_them_out(tmp_path: Path) -> None:
    mount(tmp_path / "rules", manifest("rules-configmap.yaml")["data"])

    rules = load(tmp_path / "rules")

    assert [policy.id for policy in rules.policies] == [
        "reads",
        "support-mails-customers",
        "no-sending-after-untrusted",
        "mail-rate",
    ]
    assert set(rules.files) == set(manifest("rules-configmap.yaml")["data"])
    assert not rules.warnings


def test_secrets_come_from_a_secret_that_the_example_shows_without_one(container: Map) -> None:
    env = {each["name"]: each for each in container["env"]}
    example = manifest(EXAMPLE)

    for name in SECRETS:
        assert env[name]["valueFrom"]["secretKeyRef"]["name"] == example["metadata"]["name"]
        assert env[name]["valueFrom"]["secretKeyRef"]["key"] == name
    optional = {name for name in SECRETS if env[name]["valueFrom"]["secretKeyRef"].get("optional")}
    assert optional == {"PROCTOR_BOOTSTRAP_TOKEN"}
    assert example["stringData"] == dict.fromkeys(set(SECRETS) - optional, "")


def test_the_policy_closes_both_ways_but_for_the_ports_that_are_needed() -> None:
    spec = manifest("networkpolicy.yaml")["spec"]
    out = {each["port"] for rule in spec["egress"] for each in rule["ports"]}

    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    assert out == {53, 5432, 4317, 4318, 443}
    assert all(rule["to"] for rule in spec["egress"])


def test_webhooks_reach_neither_the_metadata_of_a_cloud_nor_private_addresses() -> None:
    (rule,) = (
        rule
        for rule in manifest("networkpolicy.yaml")["spec"]["egress"]
        if [each["port"] for each in rule["ports"]] == [443]
    )
    kept_out = {
        cidr for peer in rule["to"] if "ipBlock" in peer for cidr in peer["ipBlock"]["except"]
    }

    assert all("ipBlock" in peer for peer in rule["to"])
    assert {"10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"} <= kept_out
    assert {"fc00::/7", "fe80::/10"} <= kept_out
