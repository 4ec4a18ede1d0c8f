"""Which images an image credential provider is asked about: keyring_test.go, TestURLsMatch."""

import pytest

from fleet.profile.kubelet_configuration import CredentialProvider


@pytest.mark.parametrize(
    ("pattern", "image", "matches"),
    [
        ("registry.example", "registry.example/app:1", True),
        ("*.example", "registry.example/team/app:1", True),
        ("*.example", "a.registry.example/app:1", False),
        ("reg*.exa?ple", "registry.example/app:1", True),
        ("*.example/team", "registry.example/team/app:1", True),
        ("*.example/team", "registry.example/other/app:1", False),
        ("registry.example:5000", "registry.example:5000/app:1", True),
        ("registry.example", "registry.example:5000/app:1", False),
        ("docker.io", "docker.io/library/nginx:1", True),
    ],
)
def test_a_pattern_matches_part_by_part(pattern: str, image: str, *, matches: bool) -> None:
    provider = CredentialProvider.model_validate(
        {
            "name": "p",
            "matchImages": ["none.example", pattern],
            "tokenAttributes": {"serviceAccountTokenAudience": "a"},
        }
    )
    assert provider.matches(image) is matches
