import pytest

from fleet.profile.image_behavior import ImageReference, digest_name, parse_image

HEX = "7cc4b5aefd1d0cadf8d97d4350462ba51c694ebca145b08d7d41b41acc8db5aa"


@pytest.mark.parametrize(
    ("image", "repository", "tag", "digest"),
    [
        ("nginx", "docker.io/library/nginx", "", ""),
        ("nginx:1.27", "docker.io/library/nginx", "1.27", ""),
        ("me/app", "docker.io/me/app", "", ""),
        ("docker.io/nginx:1", "docker.io/library/nginx", "1", ""),
        ("index.docker.io/me/app:1", "docker.io/me/app", "1", ""),
        ("localhost/app:2", "localhost/app", "2", ""),
        ("localhost:5000/app", "localhost:5000/app", "", ""),
        ("[::1]:5000/app:3", "[::1]:5000/app", "3", ""),
        ("Registry/app:1", "Registry/app", "1", ""),
        ("registry.k8s.io/a/b__c-d.e:v1", "registry.k8s.io/a/b__c-d.e", "v1", ""),
        (f"nginx@sha256:{HEX}", "docker.io/library/nginx", "", f"sha256:{HEX}"),
        (f"nginx:1@sha256:{HEX}", "docker.io/library/nginx", "1", f"sha256:{HEX}"),
    ],
)
def test_names_are_read_as_docker_reads_them(
    image: str, repository: str, tag: str, digest: str
) -> None:
    found = parse_image(image)
    assert found.error == ""
    assert (found.repository, found.tag, found.digest) == (repository, tag, digest)


INVALID = "invalid reference format"
LOWER = f"{INVALID}: repository name (%s) must be lowercase"
OF_DIGITS = f"invalid repository name ({HEX}), cannot specify 64-byte hexadecimal strings"


@pytest.mark.parametrize(
    ("image", "error"),
    [
        *((odd, INVALID) for odd in ("", "nginx:", "nginx::1", "a//b", "nginx:1 ", "-bad-/app")),
        ("nginx:" + "t" * 129, INVALID),
        ("nginx@sha256:0123", INVALID),
        ("Nginx", LOWER % "library/Nginx"),
        ("quay.io/Me/app:1", LOWER % "Me/app"),
        (f"nginx@sha256:{HEX}00", "invalid checksum digest length"),
        (f"nginx@sha256:{HEX.upper()}", "invalid checksum digest format"),
        (f"nginx@md7:{HEX}", "unsupported digest algorithm"),
        (HEX, OF_DIGITS),
        ("x/" + "y" * 255, "repository name must not be more than 255 characters"),
    ],
)
def test_what_is_no_reference_is_told_in_dockers_words(image: str, error: str) -> None:
    assert parse_image(image) == ImageReference(error=error)


def test_full_names_have_a_tag_or_a_digest() -> None:
    assert parse_image("nginx").full_name == "docker.io/library/nginx:latest"
    both = parse_image(f"nginx:1@sha256:{HEX}")
    assert both.full_name == f"docker.io/library/nginx@sha256:{HEX}"


def test_a_digest_is_the_same_on_every_node() -> None:
    name = digest_name("docker.io/library/nginx:1")
    assert name.startswith("docker.io/library/nginx@sha256:")
    assert len(name.partition("sha256:")[2]) == 64
    assert digest_name(name) == name
    assert digest_name("docker.io/library/nginx:2") != name
