"""Images on a real control plane: what kubectl shows of pulls, of their failures, and of nodes."""

import re
from collections.abc import Iterator

import pytest
import yaml
from e2e_world import Json, World, eventually

from fleet.profile.loader import show_profile

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "pulls"
NODE = f"{PREFIX}-00000"
STALLED_S_MAX = 60
"""What a pull may take on a machine that stands still meanwhile."""


@pytest.fixture(scope="module")
def node(world: World) -> Iterator[str]:
    """Run one node with all pods; its registry is far away, two images are there from the start."""
    profile = yaml.safe_load(show_profile("default"))
    profile["spec"]["imagePulls"] = {"bandwidth": "100M", "latency": "200ms"}
    preloaded = {"names": ["example.com/local:1"], "sizeBytes": 12_000_000}
    profile["spec"]["template"]["status"]["images"].append(preloaded)
    path = world.root / "pulls.yaml"
    path.write_text(yaml.safe_dump(profile))
    private = pod("private", "registry.example/secret:1", pull_error="Unauthorized")
    private["spec"]["imagePullSecrets"] = [{"name": "pull-me"}]
    model = {"name": "model", "image": {"reference": "registry.example/model:1"}}
    mounting = pod("mounting", "example.com/local:1"), pod("nomodel", "example.com/local:1")
    for each in mounting:
        each["spec"]["volumes"] = [model]
        [mounts] = each["spec"]["containers"]
        mounts["volumeMounts"] = [{"name": "model", "mountPath": "/model"}]
    mounting[1]["metadata"]["annotations"] = {"fleet.emulator/pull-error": "NotFound"}
    mounting[1]["spec"]["volumes"] = [
        {"name": "model", "image": {"reference": "registry.example/model:none"}}
    ]
    with world.spawn(PREFIX, 1, f"--profile={path}") as run:
        run.until_ready()
        world.apply(
            pod("missing", "nginx:nope", pull_error="NotFound"),
            pod("name", "quay.io/Me/app:1"),
            pod("never", "nginx:1", "Never"),
            pod("limited", "nginx:2", pull_error="RateLimited"),
            private,
            pod("pulled", "registry.example/team/app:1", image_size="50M"),
            pod("local", "example.com/local:1"),
            pod("turn0", "registry.example/turn:0", image_size="600M"),
            pod("turn1", "registry.example/turn:1", image_size="600M"),
            *mounting,
        )
        yield NODE
        world.kubectl("delete", "pods", "-l", "of=images", "--wait=false")
        world.kubectl("delete", "secret", "pull-me", "--ignore-not-found")
        run.end_well_or_late()
    world.assert_nothing_left(PREFIX)


def pod(name: str, image: str, policy: str = "IfNotPresent", **notes: str) -> Json:
    """Return a Pod on our node, annotated with what its image does."""
    annotations = {f"fleet.emulator/{key.replace('_', '-')}": text for key, text in notes.items()}
    container = {"name": "c", "image": image, "imagePullPolicy": policy}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations, "labels": {"of": "images"}},
        "spec": {
            "nodeName": NODE,
            "containers": [container],
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
        },
    }


def container(world: World, name: str) -> Json:
    found: Json = world.get("pod", name)["status"].get("containerStatuses", [{}])[0]
    return found


def waiting(world: World, name: str) -> Json:
    found: Json = container(world, name).get("state", {}).get("waiting", {})
    return found


def events(world: World, name: str) -> list[tuple[str, str, str]]:
    """Return type, reason and message of the events about a pod."""
    found = world.items("events", "--field-selector", f"involvedObject.name={name}")
    return [(each["type"], each["reason"], each["message"]) for each in found]


def reasons(world: World, name: str) -> list[str]:
    return [reason for _, reason, _ in events(world, name)]


def pulled_texts(world: World) -> list[str]:
    """Return how long the pulls of the pods turn0 and turn1 took."""
    found = events(world, "turn0") + events(world, "turn1")
    return [message for _, reason, message in found if reason == "Pulled"]


def durations(text: str) -> list[float]:
    """Return the seconds that a pull took, without and with waiting, from its event's message."""
    found = re.findall(r"([\d.]+)(m?)s\b", text)
    return [float(number) / (1000 if milli else 1) for number, milli in found]


def images(world: World) -> dict[str, int]:
    """Return the images of the node, by their last names."""
    found = world.get("node", NODE)["status"].get("images", [])
    return {each["names"][-1]: each["sizeBytes"] for each in found}


@pytest.mark.usefixtures("node")
def test_pull_secrets_are_looked_up(world: World) -> None:
    eventually(lambda: waiting(world, "private").get("reason") == "ErrImagePull", "no secret")
    lookup = (
        "Unable to retrieve some image pull secrets (pull-me); attempting to pull the image may "
        "not succeed."
    )
    told = ("Warning", "FailedToRetrieveImagePullSecret", lookup)
    eventually(lambda: told in events(world, "private"), "its event")
    assert "pull access denied" in waiting(world, "private")["message"]
    credentials = ("--docker-server=registry.example", "--docker-username=u", "--docker-password=p")
    world.kubectl("create", "secret", "docker-registry", "pull-me", *credentials)
    world.kubectl("annotate", "pod", "limited", "fleet.emulator/pull-error-")  # see the last test


@pytest.mark.usefixtures("node")
def test_failing_pulls_look_as_they_do_in_a_real_cluster(world: World) -> None:
    full = "docker.io/library/nginx:nope"
    error = (
        f'rpc error: code = NotFound desc = failed to pull and unpack image "{full}": '
        f'failed to resolve reference "{full}": {full}: not found'
    )
    back_off = 'Back-off pulling image "nginx:nope"'
    shown = {
        "ErrImagePull": {"reason": "ErrImagePull", "message": error},
        "ImagePullBackOff": {
            "reason": "ImagePullBackOff",
            "message": f"{back_off}: ErrImagePull: {error}",
        },
    }
    seen: list[Json] = []

    def has_shown_both() -> bool:
        seen.append(waiting(world, "missing"))
        return all(state in seen for state in shown.values())

    eventually(has_shown_both, "ErrImagePull, then ImagePullBackOff")
    wanted = {
        ("Normal", "Pulling", 'Pulling image "nginx:nope"'),
        ("Warning", "Failed", f'Failed to pull image "nginx:nope": {error}'),
        ("Warning", "Failed", "Error: ErrImagePull"),
        ("Normal", "BackOff", back_off),
        ("Warning", "Failed", "Error: ImagePullBackOff"),
    }
    eventually(lambda: wanted <= set(events(world, "missing")), "their events")
    table = world.kubectl("get", "pods", "-l", "of=images")
    [line] = [line for line in table.splitlines() if line.startswith("missing ")]
    assert line.split()[1] == "0/1"
    assert line.split()[2] in shown


@pytest.mark.usefixtures("node")
def test_images_that_are_not_even_tried_say_why(world: World) -> None:
    invalid = (
        'Failed to apply default image tag "quay.io/Me/app:1": couldn\'t parse image name '
        '"quay.io/Me/app:1": invalid reference format: repository name (Me/app) must be lowercase'
    )
    eventually(lambda: waiting(world, "name").get("message"), "the name is refused")
    assert waiting(world, "name") == {"reason": "InvalidImageName", "message": invalid}
    told = ("Warning", "InspectFailed", invalid)
    eventually(lambda: told in events(world, "name"), "its event")
    never = 'Container image "nginx:1" is not present with pull policy of Never'
    eventually(lambda: waiting(world, "never").get("message"), "the policy is kept")
    assert waiting(world, "never") == {"reason": "ErrImageNeverPull", "message": never}
    missed = ("Warning", "ErrImageNeverPull", never)
    eventually(lambda: missed in events(world, "never"), "its event")
    assert "Pulling" not in reasons(world, "name") + reasons(world, "never")


@pytest.mark.usefixtures("node")
def test_pulled_images_have_their_events_their_ids_and_a_place_in_the_node_status(
    world: World,
) -> None:
    assert images(world)["example.com/local:1"] == 12_000_000
    eventually(lambda: "Started" in reasons(world, "pulled"), "the pod runs")
    eventually(lambda: container(world, "pulled").get("imageID"), "its image is told")
    found = events(world, "pulled")
    assert ("Normal", "Pulling", 'Pulling image "registry.example/team/app:1"') in found
    [text] = [message for _, reason, message in found if reason == "Pulled"]
    assert text.startswith('Successfully pulled image "registry.example/team/app:1" in ')
    assert 0.7 <= durations(text)[0] < STALLED_S_MAX
    assert text.endswith(" including waiting). Image size: 50000000 bytes.")
    shown = container(world, "pulled")
    assert shown["image"] == "registry.example/team/app:1"
    repository, _, digest = shown["imageID"].partition("@sha256:")
    assert (repository, len(digest)) == ("registry.example/team/app", 64)
    world.apply(pod("second", "registry.example/team/app:1"))
    eventually(lambda: "Started" in reasons(world, "second"), "the second pod runs")
    assert "Pulling" not in reasons(world, "second") + reasons(world, "local")
    text = (
        'Container image "example.com/local:1" already present on machine and can be accessed by '
        "the pod"
    )
    eventually(lambda: ("Normal", "Pulled", text) in events(world, "local"), "its event")
    listed = "registry.example/team/app:1"
    eventually(lambda: listed in images(world), "the node lists the image")
    sizes = list(images(world).values())
    assert sizes == sorted(sizes, reverse=True)
    node = world.get("node", NODE)
    [entry] = [each for each in node["status"]["images"] if each["names"][-1] == listed]
    assert entry == {"names": [shown["imageID"], listed], "sizeBytes": 50_000_000}


@pytest.mark.usefixtures("node")
def test_images_of_volumes_come_before_the_containers(world: World) -> None:
    world.kubectl("wait", "--for=condition=Ready", "pod/mounting", "--timeout=120s")
    found = events(world, "mounting")
    assert ("Normal", "Pulling", 'Pulling image "registry.example/model:1"') in found
    eventually(lambda: "registry.example/model:1" in images(world), "the node lists the image")
    shown = {"ErrImagePull", "ImagePullBackOff"}
    eventually(lambda: waiting(world, "nomodel").get("reason") in shown, "no such image")
    assert waiting(world, "nomodel")["message"].endswith("registry.example/model:none: not found")


@pytest.mark.usefixtures("node")
def test_pulls_wait_for_each_other_and_are_tried_again(world: World) -> None:
    eventually(lambda: len(pulled_texts(world)) == 2, "both images are there")
    texts = pulled_texts(world)
    took = [durations(text)[0] for text in texts]
    waited = sorted(durations(text)[1] for text in texts)
    assert all(6.2 <= each < STALLED_S_MAX for each in took), texts
    assert waited[1] >= waited[0] + 1.5  # asked for within 4 s of each other
    for name in ("private", "limited"):
        world.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")
