"""What a security context comes to: what the status shows, and what a kubelet refuses."""

from functools import lru_cache

from fleet.k8s.pods import UserSpec
from fleet.runtime.known_images import is_shell_image

WINDOWS_ROOT = "ContainerAdministrator"
UNKNOWN_UID = 65532
"""The user of an image that must not be root's and names none: "nonroot" of distroless."""


def non_root_error(user: UserSpec, image: str, name: str, pod: str) -> str:
    """Return why a container must not run as its user, "" if it may; `pod` is `name_ns(uid)`.

    Source: pkg/kubelet/kuberuntime/security_context_others.go, verifyRunAsNonRoot.
    Differs: images whose user is not known are taken to have one that is not root.
    """
    if not user.non_root or user.uid:
        return ""
    where = f'(pod: "{pod}", container: {name})'
    if user.uid == 0:
        return f"container's runAsUser breaks non-root policy {where}"
    if is_shell_image(image):
        return f"container has runAsNonRoot and image will run as root {where}"
    return ""


def windows_non_root_error(user: UserSpec, name: str, pod: str) -> str:
    """Return the same of a node of Windows, where numbers of users mean nothing.

    Source: pkg/kubelet/kuberuntime/security_context_windows.go, verifyRunAsNonRoot.
    """
    if not user.non_root or user.windows_name.lower() != WINDOWS_ROOT.lower():
        return ""
    return (
        f"container's runAsUserName ({user.windows_name}) which will be regarded as root identity "
        f'and will break non-root policy (pod: "{pod}", container: {name})'
    )


@lru_cache(maxsize=1024)
def user_json(user: UserSpec) -> bytes:
    """Render the user as the status of a container shows it, with sorted keys.

    Source: core/v1 ContainerUser; containerd's toCRIContainerUser.
    Differs: an image's own /etc/passwd and /etc/group are taken to add nothing.
    """
    uid = user.uid
    if uid is None:
        uid = UNKNOWN_UID if user.non_root else 0
    gid = user.gid if user.gid is not None else 0 if user.uid is not None else uid
    groups = ",".join(map(str, dict.fromkeys((gid, *user.groups))))
    return b'{"linux":{"gid":%d,"supplementalGroups":[%b],"uid":%d}}' % (gid, groups.encode(), uid)
