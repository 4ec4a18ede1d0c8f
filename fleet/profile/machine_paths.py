"""Which paths a node's machine has, and of which type, for volumes of kind hostPath.

A machine is a usual Linux one that runs a kubelet and containerd; `machinePaths` of a profile adds
to it. runtime/host_paths.py knows what pods make there.
Differs: the tables list only what everyday pods mount of /proc, /sys and /dev; one disk, sda.
"""

import posixpath
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from fleet.profile.schema import Spec

PathType = Literal["Directory", "File", "Socket", "CharDevice", "BlockDevice"]
DIRECTORY = "Directory"

_USUAL: dict[PathType, str] = {
    "Directory": """
        /boot /dev/disk /dev/hugepages /dev/mapper /dev/mqueue /dev/pts /dev/shm
        /etc/ca-certificates /etc/cni/net.d /etc/default /etc/kubernetes/manifests
        /etc/kubernetes/pki /etc/security /etc/ssl/certs /etc/systemd/system /etc/udev /home
        /media /mnt /opt/cni/bin /proc/1 /proc/self /proc/sys/fs /proc/sys/kernel /proc/sys/net
        /proc/sys/vm /root /run/containerd /run/lock /run/systemd/system /run/udev /run/user
        /srv /sys/block /sys/bus /sys/class /sys/dev /sys/devices /sys/firmware /sys/fs/bpf
        /sys/fs/cgroup /sys/kernel/debug /sys/kernel/security /sys/kernel/tracing /sys/module
        /tmp /usr/bin /usr/lib/modules /usr/lib64 /usr/libexec /usr/local/bin
        /usr/local/share/ca-certificates /usr/sbin /usr/share/ca-certificates /usr/src
        /var/cache /var/lib/cni /var/lib/containerd /var/lib/kubelet/device-plugins
        /var/lib/kubelet/plugins /var/lib/kubelet/plugins_registry /var/lib/kubelet/pods
        /var/log/containers /var/log/journal /var/log/pods /var/spool /var/tmp
        """,
    "File": """
        /etc/containerd/config.toml /etc/fstab /etc/group /etc/hostname /etc/hosts
        /etc/kubernetes/kubelet.conf /etc/localtime /etc/machine-id /etc/nsswitch.conf
        /etc/os-release /etc/passwd /etc/resolv.conf /etc/shadow /etc/timezone /proc/cmdline
        /proc/cpuinfo /proc/diskstats /proc/loadavg /proc/meminfo /proc/mounts /proc/stat
        /proc/uptime /proc/version /run/xtables.lock /usr/lib/os-release
        /var/lib/kubelet/config.yaml
        """,
    "Socket": """
        /dev/log /run/containerd/containerd.sock /run/dbus/system_bus_socket
        /run/systemd/journal/socket /run/systemd/notify
        /var/lib/kubelet/device-plugins/kubelet.sock /var/lib/kubelet/pod-resources/kubelet.sock
        """,
    "CharDevice": """
        /dev/console /dev/full /dev/fuse /dev/kmsg /dev/loop-control /dev/net/tun /dev/null
        /dev/ptmx /dev/random /dev/tty /dev/urandom /dev/zero
        """,
    "BlockDevice": "/dev/loop0 /dev/sda /dev/sda1",
}
_LINKS = {
    "/bin": "/usr/bin",
    "/lib": "/usr/lib",
    "/lib64": "/usr/lib64",
    "/sbin": "/usr/sbin",
    "/var/lock": "/run/lock",
    "/var/run": "/run",
}


class MachinePath(Spec):
    """A path that the machines of a profile have."""

    path: Annotated[str, Field(pattern="^/")]
    type: PathType = "Directory"


@lru_cache(maxsize=64)
def types_by_path(declared: tuple[MachinePath, ...]) -> dict[str, str]:
    """Return the type of each path of a machine; what leads to a path is a directory."""
    usual = [(path, kind) for kind, paths in _USUAL.items() for path in paths.split()]
    found: dict[str, str] = {}
    for path, kind in (*usual, *((each.path, each.type) for each in declared)):
        real = real_path(path)
        found[real] = kind
        while real != "/":
            real = posixpath.dirname(real)
            found[real] = DIRECTORY
    return found


def real_path(path: str) -> str:
    """Return a path without the links that a Linux machine has near its root."""
    path = f"/{posixpath.normpath(path).lstrip('/')}"
    for link, target in _LINKS.items():
        if path == link or path.startswith(f"{link}/"):
            return target + path[len(link) :]
    return path
