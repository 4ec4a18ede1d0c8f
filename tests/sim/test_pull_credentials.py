"""Image credential providers: what a kubelet asks of the API server before it pulls an image."""

from typing import Any

import pytest
from world.pod_world import model_of
from world.simulation import Simulation, default_model
from world.strategic_merge import Object

pytest_plugins = ("sim_encodings",)

AUDIENCE = "registry.example"
PULLS = {"imagePulls": {"latency": "100ms"}}


def provider(audience: str = AUDIENCE, image: str = "*.example/team", **token: object) -> Object:
    attributes = {"serviceAccountTokenAudience": audience, **token}
    return {"name": audience, "matchImages": [image], "tokenAttributes": attributes}


def started(*providers: Object, light: bool = False, **spec: object) -> Simulation:
    model = model_of(imageCredentialProviders=list(providers), **PULLS, **spec)
    sim = Simulation(seed=1, light=light, model=model)
    account = {"metadata": {"annotations": {"example/role": "puller"}}}
    sim.server.create(("serviceaccounts", "default", "default"), account)
    sim.run_for(seconds=30)
    return sim


def asked(sim: Simulation) -> list[str]:
    """Return what was asked of the service account."""
    sent = sim.calls(path="/serviceaccounts/default")
    return [each.verb for each in sent]


def container(name: str = "c", image: str = "a.example/team/app:1", **fields: object) -> Object:
    return {"name": name, "image": image, "imagePullPolicy": "Always", **fields}


def create(sim: Simulation, name: str, *containers: Object, **spec: Any) -> None:
    """Create a pod that mounts no token."""
    sim.create_pod(name, containers=list(containers or (container(),)), **spec)
    sim.run_for(seconds=10)


def test_a_token_is_asked_for_before_a_pull_and_used_for_the_next() -> None:
    sim = started(provider(), provider("other", "b.example"))
    create(sim, "p", container(), container("d", "a.example/team/other:1"))
    assert sim.phase("p") == "Running"
    assert asked(sim) == ["GET", "POST", "GET"]
    pulling = [each for each in sim.calls(path="/events") if each.verb == "POST"]
    assert pulling[-1].t_ns > sim.calls(path="/serviceaccounts/default/token")[0].t_ns
    sim.server.delete_pod("p")
    create(sim, "q", container("x", "a.example:443/team/app"), container("y", "example/team/app"))
    assert sim.phase("q") == "Running"
    assert asked(sim) == ["GET", "POST", "GET"]


def test_each_provider_that_matches_is_asked() -> None:
    sim = started(provider(), provider("second"))
    create(sim, "p")
    assert asked(sim) == ["GET", "POST", "GET", "POST"]


def test_an_image_in_back_off_is_asked_for_too() -> None:
    sim = started(provider())
    create(sim, "p", annotations={"fleet.emulator/pull-error": "NotFound"})
    sim.run_for(seconds=60)
    looks = [each for each in sim.events(about="p") if each["reason"] in {"Pulling", "BackOff"}]
    assert asked(sim).count("GET") == sum(each["count"] for each in looks) > 4


def test_a_container_that_restarts_waits_as_long_as_without_a_provider() -> None:
    sim = started(provider())
    create(sim, "p", annotations={"fleet.emulator/exit-code": "1"})
    sim.run_for(seconds=90)
    [status] = sim.status("p")["containerStatuses"]
    assert status["restartCount"] == 4


@pytest.mark.parametrize("checks", [True, False])
def test_an_image_that_was_pulled_needs_credentials_again_or_none(*, checks: bool) -> None:
    gates = {"KubeletEnsureSecretPulledImages": checks}
    sim = started(provider(), kubeletConfiguration={"featureGates": gates})
    create(sim, "p")
    create(sim, "q", container(imagePullPolicy="IfNotPresent"))
    assert sim.phase("q") == "Running"
    [pulled] = sim.events("Pulled", "q")
    assert pulled["message"].endswith("can be accessed by the pod") == checks
    assert asked(sim) == ["GET", "POST"] * (1 + checks)
    sim.server.create(("serviceaccounts", "default", "other"), {})
    create(sim, "r", container(imagePullPolicy="IfNotPresent"), serviceAccountName="other")
    assert bool(sim.events("Pulling", "r")) == checks  # its account pulled nothing yet


@pytest.mark.parametrize(("key", "calls"), [("example/role", 2), ("example/none", 1), ("", 1)])
def test_an_account_has_to_be_there_with_the_annotations(key: str, calls: int) -> None:
    sim = started(provider(requiredServiceAccountAnnotationKeys=[key] if key else []))
    if not key:
        sim.server.remove(("serviceaccounts", "default", "default"))
    create(sim, "p")
    assert sim.phase("p") == "Running"
    assert len(asked(sim)) == calls
    create(sim, "q", container(imagePullPolicy="IfNotPresent"))
    assert len(asked(sim)) == calls**2  # without credentials it was pulled for all pods


@pytest.mark.parametrize(("image", "phase"), [("a.example/team", "Running"), ("b", "Pending")])
def test_a_provider_opens_a_private_image(image: str, phase: str) -> None:
    sim = started(provider(image=image))
    create(sim, "p", annotations={"fleet.emulator/pull-error": "Unauthorized"})
    assert sim.phase("p") == phase


def test_the_image_of_a_volume_is_pulled_with_a_token_too() -> None:
    sim = started(provider())
    source = {"reference": "a.example/team/data:1", "pullPolicy": "Always"}
    mounted = container(image="plain:1", volumeMounts=[{"name": "v", "mountPath": "/v"}])
    create(sim, "p", mounted, volumes=[{"name": "v", "image": source}])
    assert sim.phase("p") == "Running"
    # Until 1.36 each sync pulls the image again; the token is kept between them.
    is_twice = default_model().release.configures_each_sync
    assert asked(sim) == ["GET", "POST", "GET"][: 3 if is_twice else 2]


@pytest.mark.parametrize("light", [True, False])
def test_who_asks_for_no_token(*, light: bool) -> None:
    gates = {"KubeletServiceAccountTokenForCredentialProviders": light}
    sim = started(provider(), light=light, kubeletConfiguration={"featureGates": gates})
    create(sim, "p")
    assert sim.phase("p") == "Running"
    assert asked(sim) == []
