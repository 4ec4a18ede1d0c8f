"""Restart rules, hooks and the like of a container, from JSON."""

from typing import Any

from fleet.k8s.pods import PLAIN_LIFE, ContainerLifecycle, Hook, RestartRule
from fleet.wire.api.decode_probe import number_of_port

MESSAGE_PATH = PLAIN_LIFE.message_path
_FIELDS = frozenset(("restartPolicyRules", "lifecycle", "resizePolicy"))


def container_lifecycle(obj: dict[str, Any]) -> ContainerLifecycle:
    """Return what a container's spec says about its life; most say nothing."""
    from_logs = obj.get("terminationMessagePolicy") == "FallbackToLogsOnError"
    path = obj.get("terminationMessagePath") or MESSAGE_PATH
    if not from_logs and path == MESSAGE_PATH and _FIELDS.isdisjoint(obj):
        return PLAIN_LIFE
    hooks = obj.get("lifecycle") or {}
    life = ContainerLifecycle(
        restart_rules=tuple(map(_rule, obj.get("restartPolicyRules") or ())),
        post_start=_hook(hooks.get("postStart"), obj),
        pre_stop=_hook(hooks.get("preStop"), obj),
        message_path=path,
        message_from_logs=from_logs,
        resize_restarts=tuple(
            each["resourceName"]
            for each in obj.get("resizePolicy") or ()
            if each.get("restartPolicy") == "RestartContainer"
        ),
    )
    return PLAIN_LIFE if life == PLAIN_LIFE else life


def _rule(obj: dict[str, Any]) -> RestartRule:
    codes = obj.get("exitCodes") or {}
    return RestartRule(
        obj.get("action", ""), codes.get("operator", ""), tuple(codes.get("values", ()))
    )


def _hook(obj: dict[str, Any] | None, container: dict[str, Any]) -> Hook | None:
    if not obj:
        return None
    kind = next(iter(obj))
    handler = obj[kind] or {}
    return Hook(
        kind,
        tuple(handler.get("command", ())),
        handler.get("path", ""),
        handler.get("seconds", 0),
        handler.get("host", ""),
        number_of_port(handler["port"], container)[0] if "port" in handler else 0,
        handler.get("scheme") == "HTTPS",
    )
