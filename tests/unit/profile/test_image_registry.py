"""What the registry of a kind of node has."""

from fleet.profile.image_behavior import DEFAULT_IMAGE, ImageBehavior, ImagePulls, PullError


def test_an_image_that_no_registry_has_is_not_found() -> None:
    pulls = ImagePulls(not_found=("docker.io/library/web:*", "*:nonexistent"))
    for name in ("docker.io/library/web:404", "registry.k8s.io/e2e/x:nonexistent"):
        assert pulls.found(DEFAULT_IMAGE, name).error is PullError.NOT_FOUND
    assert pulls.found(DEFAULT_IMAGE, "docker.io/library/web2:404") is DEFAULT_IMAGE
    private = ImageBehavior(error=PullError.UNAUTHORIZED)
    assert pulls.found(private, "docker.io/library/web:404") is private
    assert not pulls.is_declared
