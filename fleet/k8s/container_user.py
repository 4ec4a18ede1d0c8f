"""The user of a container, as the security contexts of its pod ask for it."""

from typing import NamedTuple


class UserSpec(NamedTuple):
    """What the security contexts of a pod and its container come to; None is the image's choice.

    Source: pkg/securitycontext/util.go, DetermineEffectiveSecurityContext.
    """

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()
    non_root: bool = False
    fs_group: int | None = None  # of the pod: it owns the volumes
    read_only_root: bool = False
    no_new_privs: bool = False  # allowPrivilegeEscalation: false
    windows_name: str = ""  # runAsUserName


IMAGE_USER = UserSpec()
