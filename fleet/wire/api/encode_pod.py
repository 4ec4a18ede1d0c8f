"""The status patch of a pod. Source: pkg/util/pod/pod.go, PatchPodStatus."""

from fleet.k8s.effects import PodStatusPatch
from fleet.k8s.pods import TOKEN_VOLUME, TOKEN_VOLUME_START
from fleet.k8s.schema import differing, render
from fleet.k8s.strategic_merge import two_way_patch

EPHEMERAL = "ephemeralContainerStatuses"


def pod_status_patch(patch: PodStatusPatch) -> bytes:
    """Render the body of a PATCH of one pod's status; the uid is its precondition."""
    sides = differing(patch.old, patch.new)
    for status in sides:
        for first, listed in (("hostIP", "hostIPs"), ("podIP", "podIPs")):
            if listed in status:
                status[first] = status[listed][0]["ip"]
        for each in status.get(EPHEMERAL, ()):
            # Only the prober sets it, which looks at no ephemeral container.
            # Source: prober_manager.go, UpdatePodStatus.
            del each["started"]
    body = render({"metadata": {"uid": patch.uid}, "status": two_way_patch(*sides)})
    if patch.token_suffix:
        body = body.replace(TOKEN_VOLUME, TOKEN_VOLUME_START + patch.token_suffix.encode())
    return body
