"""The dashboard of a release: its token, its names, its path; and what Helm says at the end."""

import base64
import json
import re
from typing import Any

import pytest
import yaml
from e2e.e2e_world import World

from chart.helm_commands import NAMESPACE, RELEASE, SOME_UID, Helm

pytest_plugins = ("e2e.e2e_fixtures", "chart.chart_fixtures")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

Json = dict[str, Any]
DIGEST = "sha256:" + "ab" * 32
NAME = f"{RELEASE}-locust"
PAUSE = "registry.k8s.io/pause:3.10.1"  # of the smoke test


def named(objects: list[Json], kind: str) -> list[Json]:
    return [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, NAME)]


def master(objects: list[Json]) -> Json:
    [deployment] = named(objects, "Deployment")
    [only] = deployment["spec"]["template"]["spec"]["containers"]
    return dict(only)


def ingress(**values: object) -> Json:
    return {"locust": {"enabled": True, "ingress": {"enabled": True, **values}}}


def notes(helm: Helm, values: Json) -> str:
    path = helm.values(values)
    command = ("install", RELEASE, "charts/fleet", f"--namespace={NAMESPACE}", "--dry-run=client")
    return helm.run(*command, f"--values={path}").stdout.partition("NOTES:")[2]


def test_the_token_is_in_a_secret_and_nowhere_else(bare_helm: Helm) -> None:
    objects = bare_helm.objects({"locust": {"enabled": True}})
    [secret] = named(objects, "Secret")
    token = base64.b64decode(secret["data"]["token"]).decode()
    assert re.fullmatch(r"[A-Za-z0-9]{32}", token)
    assert token not in str([each for each in objects if each is not secret])
    wanted = {"secretKeyRef": {"name": NAME, "key": "token"}}
    found = master(objects)
    assert {"name": "FLEET_DASHBOARD_TOKEN", "valueFrom": wanted} in found["env"]
    # A probe has no token, and needs none.
    assert found["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "dashboard"}

    given = {"existingSecret": "ours", "key": "the.key"}
    objects = bare_helm.objects({"locust": {"enabled": True, "token": given}})
    assert not named(objects, "Secret")
    assert {"name": "ours", "key": "the.key"} in [
        each.get("valueFrom", {}).get("secretKeyRef") for each in master(objects)["env"]
    ]
    assert "get secret ours -o jsonpath='{.data.the\\.key}'" in notes(
        bare_helm, {"locust": {"enabled": True, "token": given}}
    )


def test_an_upgrade_keeps_the_token(helm: Helm, world: World) -> None:
    world.kubectl("create", "namespace", NAMESPACE, check=False)
    kept = "a-token-that-was-there-before"
    owner = {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": NAMESPACE}
    labels = {"app.kubernetes.io/managed-by": "Helm"}
    metadata = {"name": NAME, "namespace": NAMESPACE, "labels": labels, "annotations": owner}
    head = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
    world.kubectl("create", "-f", "-", stdin=json.dumps({**head, "stringData": {"token": kept}}))
    try:
        uid = world.get("namespace", "kube-system")["metadata"]["uid"]
        path = helm.values({"locust": {"enabled": True}, "confirmCluster": uid})
        command = ("template", RELEASE, "charts/fleet", f"--namespace={NAMESPACE}")
        rendered = helm.run(*command, "--dry-run=server", f"--values={path}").stdout
        [secret] = named([each for each in yaml.safe_load_all(rendered) if each], "Secret")
        assert base64.b64decode(secret["data"]["token"]).decode() == kept
    finally:
        world.kubectl("delete", "secret", NAME, "-n", NAMESPACE)


@pytest.mark.parametrize(
    ("path", "base"), [("/", None), ("/load", "/load"), ("/load/fleet/", "/load/fleet")]
)
def test_the_path_of_the_ingress_is_where_the_dashboard_begins(
    bare_helm: Helm, path: str, base: str | None
) -> None:
    objects = bare_helm.objects(ingress(path=path))
    arguments = [each for each in master(objects)["args"] if "base-path" in each]
    assert arguments == ([f"--web-base-path={base}"] if base else [])
    [found] = named(objects, "Ingress")
    [rule] = found["spec"]["rules"]
    assert [each["path"] for each in rule["http"]["paths"]] == [base or "/"]
    for wrong in ("/a b", "load", "/load(/|$)(.*)", "//"):
        assert "at '/locust/ingress/path'" in bare_helm.template(ingress(path=wrong), check=False)


def test_the_dashboard_knows_the_names_that_lead_to_it(bare_helm: Helm) -> None:
    def hosts(values: Json) -> set[str]:
        words = master(bare_helm.objects(values))["args"]
        prefix = "--dashboard-host="
        return {word.removeprefix(prefix) for word in words if word.startswith(prefix)}

    inside = {NAME, *(f"{NAME}.{NAMESPACE}{more}" for more in ("", ".svc", ".svc.cluster.local"))}
    assert hosts({"locust": {"enabled": True}}) == inside
    assert hosts(ingress(host="fleet.test")) == {*inside, "fleet.test"}
    assert hosts(ingress(host="*.test")) == inside  # whichever it is: name it in locust.hosts
    assert hosts({"locust": {"enabled": True, "hosts": ["10.0.0.7", "a.b"]}}) == {
        *inside,
        *("10.0.0.7", "a.b"),
    }


def test_an_image_may_be_named_by_its_digest(bare_helm: Helm) -> None:
    values: Json = {"image": {"repository": "r.test/fleet", "tag": "1", "digest": DIGEST}}
    values["locust"] = {"enabled": True, "apiUsers": {"count": 1}}
    rendered = bare_helm.template(values)
    images = set(re.findall(r"image: (.*)", rendered)) - {PAUSE}
    assert images == {f"r.test/fleet@{DIGEST}"}
    values["image"]["digest"] = "sha256:abc"
    assert "at '/image/digest'" in bare_helm.template(values, check=False)


def test_the_notes_name_the_cluster_the_token_and_times_that_fit(bare_helm: Helm) -> None:
    said = notes(bare_helm, {"nodes": 5000, **ingress(host="fleet.test", path="/load", tls=[{}])})
    assert f"whose namespace kube-system has UID {SOME_UID}" in said
    assert f"get secret {NAME} -o jsonpath='{{.data.token}}' | base64 -d" in said
    assert 'echo "http://localhost:8089/load/fleet?token=$token"' in said
    assert 'echo "https://fleet.test/load/fleet?token=$token"' in said
    assert "--wait give it --timeout 620s" in said
    assert "uninstall fleet --timeout 1260s" in said
    assert "dashboard" not in notes(bare_helm, {})


def test_a_clean_up_hook_has_time_for_its_nodes(bare_helm: Helm) -> None:
    def deadline(values: Json) -> int:
        [job] = [each for each in bare_helm.objects(values) if each["kind"] == "Job"]
        return int(job["spec"]["activeDeadlineSeconds"])

    assert deadline({"nodes": 5000}) == 1200
    huge: Json = {"nodes": 100_000, "nodesPerPod": 5000, "rbac": {"nodeNames": False}}
    assert deadline(huge) == 60 + 160 + 2000
    assert "--timeout 2280s" in notes(bare_helm, huge)
    assert "--timeout 40120s" in notes(bare_helm, {"nodes": 20_000, "rate": 0.5})
