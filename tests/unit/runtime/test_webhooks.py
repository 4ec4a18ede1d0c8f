"""The webhooks of agnhost."""

import base64
from typing import Any, cast

import orjson
import pytest
from world.pod_world import container

from fleet.runtime.http_message import HttpRequest
from fleet.runtime.known_servers import server_of
from fleet.runtime.servers import Site

SITE = cast("Site", None)
ARGS = ("webhook", "--tls-cert-file=/c/tls.crt", "--alsologtostderr", "-v=4", "2>&1", "--port=8444")


def asked(path: str, **request: object) -> dict[str, Any]:
    server = server_of(container(image="agnhost", args=ARGS))
    assert server is not None
    assert server.tcp == server.tls == (8444,)
    assert server.tls_files == ("/c/tls.crt", "")
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    review = orjson.dumps({**body, "request": {"uid": "u", "operation": "CREATE", **request}})
    reply = server.answer(SITE, 8444, HttpRequest("POST", f"{path}?timeout=10s", review))
    assert reply.code == 200
    answer = orjson.loads(reply.body)
    assert answer | body == answer
    assert answer["response"]["uid"] == "u"
    return dict(answer["response"])


def data(**values: str) -> dict[str, object]:
    return {"metadata": {}, "data": values}


BAD = {"webhook-e2e-test": "webhook-disallow"}
KEPT = data(**{"webhook-e2e-test": "webhook-nondeletable"})


@pytest.mark.parametrize(
    ("path", "request_", "is_allowed"),
    [
        ("/always-deny", {}, False),
        ("/always-allow-delay-5s", {}, True),
        ("/configmaps", {"object": data(**BAD)}, False),
        ("/configmaps", {"object": data(a="b")}, True),
        ("/configmaps", {"operation": "DELETE", "oldObject": KEPT}, False),
        ("/custom-resource", {"object": data(**BAD)}, False),
        ("/crd", {"object": {"metadata": {"labels": BAD}}}, False),
        ("/pods", {"object": {"metadata": {"labels": BAD}}}, False),
        ("/pods", {"object": {"metadata": {}, "spec": {"containers": []}}}, True),
        ("/pods/attach", {"name": "to-be-attached-pod", "object": {"container": "x"}}, True),
    ],
)
def test_admission(path: str, request_: dict[str, object], is_allowed: bool) -> None:  # noqa: FBT001
    assert asked(path, **request_)["allowed"] is is_allowed


@pytest.mark.parametrize(
    ("path", "obj", "patch"),
    [
        ("/mutating-configmaps", data(**{"mutation-start": "yes"}), "/data/mutation-stage-1"),
        (
            "/mutating-custom-resource",
            data(**{"mutation-stage-1": "yes"}),
            "/data/mutation-stage-2",
        ),
        ("/add-label", {"metadata": {"labels": {"a": "b"}}}, "/metadata/labels/added-label"),
        ("/mutating-pods", {"metadata": {"name": "webhook-to-be-mutated"}}, "/spec/initContainers"),
    ],
)
def test_mutation(path: str, obj: dict[str, object], patch: str) -> None:
    response = asked(path, object=obj)
    assert response["patchType"] == "JSONPatch"
    assert [each["path"] for each in orjson.loads(base64.b64decode(response["patch"]))] == [patch]
    assert "patch" not in asked(path, object={"metadata": {"labels": {"added-label": "yes"}}})


def test_conversion() -> None:
    server = server_of(container(image="agnhost", args=("crd-conversion-webhook", "--port=9443")))
    assert server is not None
    old = {"apiVersion": "stable.example.com/v1", "hostPort": "h:1"}
    new = {"apiVersion": "stable.example.com/v2", "host": "h", "port": "1"}
    for one, other in ((old, new), (new, old)):
        review = {"uid": "u", "desiredAPIVersion": other["apiVersion"], "objects": [one]}
        body = {"apiVersion": "v1", "kind": "ConversionReview", "request": review}
        asked = HttpRequest("POST", "/crdconvert", orjson.dumps(body))
        response = orjson.loads(server.answer(SITE, 9443, asked).body)["response"]
        assert response["convertedObjects"] == [other]
        assert response["result"]["status"] == "Success"
