"""The webhooks of agnhost: admission (`webhook`) and conversion (`crd-conversion-webhook`).

Source: test/images/agnhost/webhook/{main,addlabel,alwaysallow,alwaysdeny,configmap,crd,
customresource,pods}.go; test/images/agnhost/crd-conversion-webhook/converter.
Differs: an object is not checked to be of the kind that a path is for; /mutating-pods-sidecar has
the usual image.
"""

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from fleet.runtime.http_message import JSON, PORT_DIGITS_MAX, HttpReply, HttpRequest
from fleet.runtime.servers import Server, Site

_ALLOWED: Mapping[str, Any] = {"allowed": True}
_FOREVER_S = 90
_SLOW_S = 5
_STAGES = (("mutation-start", "mutation-stage-1"), ("mutation-stage-1", "mutation-stage-2"))
Review = dict[str, Any]


def webhook(flags: Mapping[str, str], _variables: Mapping[str, str]) -> Server:
    """Return the admission webhook that a command line asks for."""
    return _server(flags, _admit)


def conversion_webhook(flags: Mapping[str, str], _variables: Mapping[str, str]) -> Server:
    """Return the conversion webhook that a command line asks for."""
    return _server(flags, _convert)


def _server(
    flags: Mapping[str, str], answer: Callable[[Site, int, HttpRequest], HttpReply]
) -> Server:
    given = flags.get("port", "")
    port = int(given) if given.isdecimal() and len(given) <= PORT_DIGITS_MAX else 443
    files = (flags.get("tls-cert-file", ""), flags.get("tls-private-key-file", ""))
    return Server(answer, (port,), tls=(port,), tls_files=files)


def _admit(_site: Site, _port: int, request: HttpRequest) -> HttpReply:
    """Source: main.go, serve."""
    if request.path == "/readyz":
        return HttpReply(200, b"ok")
    handler = _HANDLERS.get(request.path)
    if handler is None:
        return HttpReply(404, b"404 page not found\n")
    try:
        review = orjson.loads(request.body)
        asked = review["request"]
        response = {**handler(asked), "uid": asked["uid"]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return HttpReply(400, f"Request could not be decoded: {error}\n".encode())
    wait_s = response.pop("wait_s", 0)
    answer = {"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response}
    return HttpReply(200, orjson.dumps(answer), JSON, wait_s=wait_s)


def _denied(**status: object) -> dict[str, Any]:
    return {"allowed": False, "status": {"metadata": {}, **status}}


def _patched(*operations: Mapping[str, object]) -> dict[str, Any]:
    patch = base64.b64encode(orjson.dumps(operations)).decode()
    return {"allowed": True, "patch": patch, "patchType": "JSONPatch"}


def _object(asked: Review) -> dict[str, Any]:
    field = "oldObject" if asked.get("operation") == "DELETE" else "object"
    return asked.get(field) or {}


def _labels(obj: Mapping[str, Any]) -> Mapping[str, str]:
    return (obj.get("metadata") or {}).get("labels") or {}


def _allow_slowly(_asked: Review) -> dict[str, Any]:
    status = {"metadata": {}, "message": "this webhook allows all requests"}
    return {"allowed": True, "status": status, "wait_s": _SLOW_S}


def _deny(_asked: Review) -> dict[str, Any]:
    return _denied(message="this webhook denies all requests")


def _add_label(asked: Review) -> dict[str, Any]:
    labels = _labels(_object(asked))
    if not labels:
        value = {"added-label": "yes"}
        return _patched({"op": "add", "path": "/metadata/labels", "value": value})
    if labels.get("added-label") == "yes":
        return {**_ALLOWED}
    operation = "replace" if "added-label" in labels else "add"
    return _patched({"op": operation, "path": "/metadata/labels/added-label", "value": "yes"})


def _admit_pods(asked: Review) -> dict[str, Any]:
    pod = _object(asked)
    label, message, wait_s = _labels(pod).get("webhook-e2e-test"), "", 0
    if label == "webhook-disallow":
        message += "the pod contains unwanted label; "
    elif label == "wait-forever":
        message += "the pod response should not be sent; "
        wait_s = _FOREVER_S
    for each in (pod.get("spec") or {}).get("containers") or ():
        if "webhook-disallow" in each.get("name", ""):
            message += "the pod contains unwanted container name; "
    if not message:
        return {**_ALLOWED}
    return {**_denied(message=message.strip()), "wait_s": wait_s}


def _admit_attach(asked: Review) -> dict[str, Any]:
    options = asked.get("object") or {}
    is_meant = asked.get("name") == "to-be-attached-pod" and options.get("stdin")
    if is_meant and options.get("container") == "container1":
        return _denied(message="attaching to pod 'to-be-attached-pod' is not allowed")
    return {**_ALLOWED}


def _has(containers: list[dict[str, Any]] | None, name: str) -> bool:
    return any(each.get("name") == name for each in containers or ())


def _mutate_pods(asked: Review) -> dict[str, Any]:
    pod, name = _object(asked), "webhook-added-init-container"
    inits = (pod.get("spec") or {}).get("initContainers")
    if pod["metadata"].get("name") != "webhook-to-be-mutated" or _has(inits, name):
        return {**_ALLOWED}
    added = {"image": "webhook-added-image", "name": name, "resources": {}}
    return _patched({"op": "add", "path": "/spec/initContainers", "value": [added]})


def _admit_data(what: str, unwanted: str) -> Callable[[Review], dict[str, Any]]:
    def admit(asked: Review) -> dict[str, Any]:
        value = (_object(asked).get("data") or {}).get("webhook-e2e-test")
        is_deleted = asked.get("operation") == "DELETE"
        if value == "webhook-disallow" and asked.get("operation") in {"CREATE", "UPDATE"}:
            return _denied(reason=f"the {what} contains unwanted {unwanted}")
        if value == "webhook-nondeletable" and is_deleted:
            why = "cannot be deleted because it contains unwanted key and value"
            return _denied(reason=f"the {what} {why}")
        return {**_ALLOWED}

    return admit


def _mutate_data(asked: Review) -> dict[str, Any]:
    data = _object(asked).get("data") or {}
    added = ""
    for wanted, stage in _STAGES:
        if data.get(wanted) == "yes":
            added = stage
    if not added:
        return {**_ALLOWED}
    return _patched({"op": "add", "path": f"/data/{added}", "value": "yes"})


def _admit_crd(asked: Review) -> dict[str, Any]:
    if _labels(_object(asked)).get("webhook-e2e-test") == "webhook-disallow":
        return _denied(message="the crd contains unwanted label")
    return {**_ALLOWED}


_HANDLERS: Mapping[str, Callable[[Review], dict[str, Any]]] = {
    "/add-label": _add_label,
    "/always-allow-delay-5s": _allow_slowly,
    "/always-deny": _deny,
    "/configmaps": _admit_data("configmap", "key and value"),
    "/crd": _admit_crd,
    "/custom-resource": _admit_data("custom resource", "data"),
    "/mutating-configmaps": _mutate_data,
    "/mutating-custom-resource": _mutate_data,
    "/mutating-pods": _mutate_pods,
    "/pods": _admit_pods,
    "/pods/attach": _admit_attach,
}


def _convert(_site: Site, _port: int, request: HttpRequest) -> HttpReply:
    """Source: converter/framework.go, serve; example_converter.go, convertExampleCRD."""
    if request.path == "/readyz":
        return HttpReply(200, b"ok")
    if request.path != "/crdconvert":
        return HttpReply(404, b"404 page not found\n")
    try:
        review = orjson.loads(request.body)
        asked = review["request"]
        wanted = asked["desiredAPIVersion"]
        found = [_converted(each, wanted) for each in asked["objects"]]
    except (ValueError, KeyError, TypeError) as error:
        return HttpReply(400, f"failed to deserialize body with error {error}\n".encode())
    wrong = next((each for each in found if isinstance(each, str)), None)
    response: dict[str, Any] = {"uid": asked["uid"]}
    if wrong is None:
        response |= {"convertedObjects": found, "result": {"metadata": {}, "status": "Success"}}
    else:
        status = {"metadata": {}, "status": "Failure", "message": wrong}
        response |= {"convertedObjects": [], "result": status}
    answer = {"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response}
    return HttpReply(200, orjson.dumps(answer), JSON)


def _converted(obj: dict[str, Any], wanted: str) -> dict[str, Any] | str:
    """Return an object in another version, or why that cannot be."""
    made = {**obj, "apiVersion": wanted}
    if wanted == obj["apiVersion"]:
        return f"conversion from a version to itself should not call the webhook: {wanted}"
    if not re.fullmatch(r"stable\.example\.com/v[12]", wanted):
        return f'unexpected conversion version "{wanted}"'
    if wanted.endswith("2") and "hostPort" in made:
        parts = str(made.pop("hostPort")).split(":")
        if len(parts) != 2:
            return f"invalid hostPort value `{obj['hostPort']}`"
        made["host"], made["port"] = parts
    elif wanted.endswith("1") and ("host" in made or "port" in made):
        made["hostPort"] = f"{made.pop('host', '')}:{made.pop('port', '')}"
    return made
