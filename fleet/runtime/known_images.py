"""What is known of images that nobody pulled: which of them are a shell, and what they run.

Differs: an image is known by the last part of its repository's name alone.
"""

SHELL_IMAGES = frozenset(
    (
        *("almalinux", "alpine", "amazonlinux", "archlinux", "bash", "buildpack-deps", "busybox"),
        *("centos", "debian", "fedora", "golang", "hello-world", "node", "perl", "python"),
        *("rockylinux", "ubuntu"),
    )
)
"""Images whose own command is an interactive shell or interpreter: without an input it ends."""


def is_shell_image(image: str) -> bool:
    """Return whether the image's own command is a shell, and its user root."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0] in SHELL_IMAGES


def entry_point(image: str) -> tuple[str, ...]:
    """Return a command that does as the image's own one, () if nothing is known of it."""
    return ("true",) if is_shell_image(image) else ()
