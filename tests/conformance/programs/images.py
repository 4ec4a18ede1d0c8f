"""What is known of images that nobody pulled: which are a shell, what they run, what they hold.

Differs: fleet knows the image of a distribution by the last part of its name alone, in any registry
and folder. It knows an interpreter's image only at the top of a registry or in a folder `library`:
`cni/node` does not run Node.js.
"""

from collections.abc import Mapping, Sequence

from fleet.k8s.pods import ContainerSpec
from fleet.profile.image_behavior import parse_image

from .agnhost import SETUID_PROGRAM, is_agnhost

DISTRIBUTIONS = frozenset(
    (
        *("almalinux", "alpine", "amazonlinux", "archlinux", "busybox", "centos", "debian"),
        *("fedora", "rockylinux", "ubuntu"),
    )
)
INTERPRETERS = frozenset(
    ("bash", "buildpack-deps", "golang", "hello-world", "node", "perl", "python")
)
"""Images whose own command is a shell or an interpreter: without an input it ends."""
NOTHING = ("true",)
"""A command that does as a shell or an interpreter without an input."""
OFFICIAL = ("", "library")
"""The folder of an interpreter's own image, and of its mirrors, in a registry."""


SERVERS = frozenset(
    ("crd-conversion-webhook", "guestbook", "liveness", "netexec", "nettest", "porter")
) | {"serve-hostname", "test-webserver", "webhook"}
"""Source: test/images/agnhost, its README: the programs that serve until they are stopped."""
_FILES = {
    # Source: test/images/agnhost/Dockerfile: the pair that its web servers listen with.
    "agnhost": {"/localhost.crt": "", "/localhost.key": ""},
    # Source: test/images/kitten, test/images/nautilus.
    "kitten": {"/data.json": '{\n  "image": "kitten.jpg"\n}\n'},
    "nautilus": {"/data.json": '{\n  "image": "nautilus.jpg"\n}\n'},
}
"""Files of images by name; their texts are unknown."""
_ALPINE = frozenset(("agnhost", "alpine", "kitten", "nautilus"))
_OS_RELEASE = {
    "/etc/os-release": 'NAME="Alpine Linux"\nID=alpine\nPRETTY_NAME="Alpine Linux v3.23"\n'
}
_WORKING_DIRS = {"golang": "/go", "perl": "/usr/src/app"}
"""Of shells that do not begin at the root."""
_NO_FILES: Mapping[str, str] = {}


def is_shell_image(image: str) -> bool:
    """Return whether the image's own command is a shell, and its user root."""
    name = _name(image)
    return name in DISTRIBUTIONS or (name in INTERPRETERS and _folder(image) in OFFICIAL)


def runs_its_args(image: str) -> bool:
    """Return whether an image has no entry point but what it is given: its arguments are a command.

    Source: their Dockerfiles: no ENTRYPOINT, or one that ends in `exec "$@"`.
    """
    return is_shell_image(image) or is_agnhost_image(image)


def is_agnhost_image(image: str) -> bool:
    """Return whether it is the image that tests of Kubernetes serve and look with."""
    return _name(image) == "agnhost"


def is_server(spec: ContainerSpec) -> bool:
    """Return whether a container runs one of agnhost's servers."""
    if _name(spec.image) in {"kitten", "nautilus"}:
        return True
    if not is_agnhost_image(spec.image):
        return False
    if spec.command and spec.command[0].rpartition("/")[2] not in {"agnhost", "agnhost-2"}:
        return False
    words = spec.command[1:] + spec.args if spec.command else spec.args
    return bool(words) and words[0] in SERVERS


def working_dir(image: str) -> str:
    """Return where an image's processes begin, "" if that is unknown."""
    name = _name(image)
    is_known = is_shell_image(image) or name in _FILES
    return _WORKING_DIRS.get(name, "/") if is_known else ""


def files_of_image(image: str) -> Mapping[str, str]:
    """Return the files of an image that are known, by path."""
    name = _name(image)
    found = _FILES.get(name, _NO_FILES)
    return {**found, **_OS_RELEASE} if name in _ALPINE else found


def _name(image: str) -> str:
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def _folder(image: str) -> str:
    return parse_image(image).path.rpartition("/")[0].rpartition("/")[2]


def entry_point(image: str, args: Sequence[str]) -> tuple[str, ...]:
    """Return a command that does as the image's own one, () if nothing is known of it.

    Source: test/images/agnhost/Dockerfile.
    """
    if is_agnhost_image(image):
        if not args:
            return ("/agnhost", "pause")
        return ("/agnhost",) if is_agnhost(("/agnhost", *args)) else ()
    if args:
        return ()
    if _name(image) == "nonewprivs":
        return SETUID_PROGRAM
    return NOTHING if is_shell_image(image) else ()
