"""The users of containers, from JSON."""

from typing import Any

from fleet.k8s.pods import IMAGE_USER, UserSpec


def _windows_name(context: dict[str, Any]) -> str:
    return (context.get("windowsOptions") or {}).get("runAsUserName") or ""


def container_user(container: dict[str, Any], pod: dict[str, Any]) -> UserSpec:
    """Return what a container's and its pod's security contexts come to.

    Source: pkg/kubelet/kuberuntime/security_context.go, determineEffectiveSecurityContext.
    """
    own = container.get("securityContext") or {}
    if not own and not pod:
        return IMAGE_USER
    both = {**pod, **own}
    fs_group = pod.get("fsGroup")
    return UserSpec(
        uid=both.get("runAsUser"),
        gid=both.get("runAsGroup"),
        groups=(*(() if fs_group is None else (fs_group,)), *pod.get("supplementalGroups", ())),
        non_root=both.get("runAsNonRoot", False),
        fs_group=fs_group,
        read_only_root=own.get("readOnlyRootFilesystem", False),
        no_new_privs=own.get("allowPrivilegeEscalation") is False,
        windows_name=_windows_name(own) or _windows_name(pod),
    )
