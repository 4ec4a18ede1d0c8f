"""Which release a kubelet is, by what its profile and its API server say."""

import dataclasses

import pytest
from pydantic import ValidationError

from fleet.controlplane.binaries import BUILT
from fleet.errors import UsageError
from fleet.profile.loader import load_mix
from fleet.profile.release import RELEASES, V1_34, V1_36, V1_37, Release
from fleet.profile.settings import Settings

SKEW = "a kubelet may be up to 3 minors older, and never newer"


NEWER = "the API server is v1.38.0, and fleet emulates kubelets of 1.34 to 1.37: nodes are kubelets"
OLDER = "the API server is v1.33.9, and fleet emulates kubelets of 1.34 to 1.37: nodes say v1.33.9"
ABOVE = "profile default: kubeletVersion is v1.37.0, newer than the API server: nodes are kubelets"


@pytest.mark.parametrize(
    ("profile", "server", "version", "release", "line"),
    [
        ("", "v1.36.1", "v1.36.1", V1_36, ""),
        ("", "v1.34.2+k3s1", "v1.34.2+k3s1", V1_34, ""),
        ("", "v1.38.0", "v1.37.2", V1_37, f"{NEWER} of v1.37.2"),
        ("", "v1.33.9", "v1.33.9", V1_34, f"{OLDER} and behave as 1.34"),
        ("v1.34.1", "v1.37.2", "v1.34.1", V1_34, ""),
        ("v1.37.0", "v1.36.3-eks-1", "v1.36.3-eks-1", V1_36, f"{ABOVE} of v1.36.3-eks-1"),
    ],
)
def test_the_release_follows_the_server_or_the_profile(
    profile: str, server: str, version: str, release: Release, line: str
) -> None:
    mix = load_mix()
    if profile:
        asked = dataclasses.replace(mix.models[0], kubelet_version=profile, follows_server=False)
        mix.models = (asked,)
    assert mix.choose_version("", server) == ([line] if line else [])
    mix.adapt(zone_labels=True)
    [model] = mix.models
    assert (model.kubelet_version, model.release) == (version, release)


def test_an_option_chooses_an_older_kubelet() -> None:
    mix = load_mix()
    assert mix.choose_version("v1.34.4", "v1.37.2") == []
    assert mix.models[0].release is V1_34
    assert mix.models[0].node_info["kubeletVersion"] == "v1.34.4"


@pytest.mark.parametrize(
    ("option", "server", "why"),
    [
        ("v1.37.0", "v1.36.3", f"the API server is v1.36.3; {SKEW}"),
        ("v1.34.4", "v1.38.0", f"the API server is v1.38.0; {SKEW}"),
    ],
)
def test_the_option_keeps_to_the_skew_policy(option: str, server: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_mix().choose_version(option, server)
    assert str(caught.value) == f"--kubelet-version {option}: {why}"


def test_releases_are_in_order() -> None:
    assert [each.name for each in RELEASES] == ["1.34", "1.35", "1.36", "1.37"]


def test_the_option_is_a_version() -> None:
    assert Settings.model_validate({"kubelet_version": "1.35.4"}).kubelet_version == "v1.35.4"
    for text in ("old", "1.36", "1.33.1", "v1.38.0"):
        with pytest.raises(ValidationError, match=f"'{text}' is not a version of 1.34 to 1.37"):
            Settings.model_validate({"kubelet_version": text})


def test_fleet_builds_the_control_plane_of_each_release() -> None:
    assert {each.name: each.newest for each in RELEASES} == BUILT
