import functools
from dataclasses import replace

import orjson
import pytest

from fleet.clock import NS_PER_S
from fleet.profile.distribution import constant
from fleet.profile.image_behavior import (
    DEFAULT_IMAGE,
    DEFAULT_PULLS,
    ImageBehavior,
    ImagePulls,
    PullError,
    default_size,
    digest_name,
    parse_image,
    pull_error_text,
)
from fleet.profile.kubelet_configuration import KubeletConfiguration
from fleet.profile.loader import load_mix
from fleet.profile.node_model import NodeImage, NodeModel
from fleet.profile.pod_behavior import ContainerBehavior, PodBehavior, select_behavior
from fleet.runtime.image_store import ImageStore

NGINX = "docker.io/library/nginx:1"
REDIS = "docker.io/library/redis:8"
DIGEST = "sha256:" + "5" * 64


@functools.cache
def model() -> NodeModel:
    return load_mix().model_of(0)


def store(*preloaded: NodeImage, reported_max: int = 50) -> ImageStore:
    kubelet = KubeletConfiguration(node_status_max_images=reported_max)
    return ImageStore(replace(model(), images_preloaded=preloaded, kubelet=kubelet))


def listed(images: ImageStore, node: int | None = None) -> list[dict[str, object]]:
    entry = None if node is None else images.entry(node).present
    found = orjson.loads(b"{%b}" % images.status_json(entry))["images"]
    assert isinstance(found, list)
    return found


def test_nodes_share_what_is_preloaded_until_they_differ() -> None:
    images = store(NodeImage(("nginx:1",), 70), NodeImage((f"quay.io/a@{DIGEST}",), 50))
    for node in (0, 1):
        assert images.find(node, NGINX) is not None
        assert images.find(node, f"quay.io/a@{DIGEST}") is not None
        assert images.node(node) is None
        assert images.used_bytes(node) == 120
    images.add(1, REDIS, 30, now_ns=5)
    assert images.find(0, REDIS) is None
    assert images.node(0) is None
    assert images.used_bytes(1) == 150
    images.add(1, REDIS, 30, now_ns=9)
    assert images.used_bytes(1) == 150
    assert images.entry(1).seen_ns == {2: 5}
    images.remove(1, 0)
    assert images.find(1, NGINX) is None
    assert images.find(0, NGINX) is not None
    assert images.used_bytes(1) == 80


def test_an_image_of_another_size_is_another_one() -> None:
    images = store()
    images.add(0, NGINX, 30, 0)
    images.add(1, NGINX, 40, 0)
    small, large = images.find(0, NGINX), images.find(1, NGINX)
    assert small is not None
    assert large is not None
    assert (small.size_bytes, large.size_bytes) == (30, 40)
    assert small.id != large.id


def test_images_are_listed_largest_first_digests_before_tags() -> None:
    images = store(NodeImage((), 1), NodeImage(tuple(f"a:{at}" for at in range(9)), 20))
    images.add(0, NGINX, 30, 0)
    first, second, last = listed(images, 0)
    digest, tag = first["names"]  # type: ignore[misc]
    assert digest.startswith("docker.io/library/nginx@sha256:")  # type: ignore[has-type]
    assert (tag, first["sizeBytes"]) == (NGINX, 30)  # type: ignore[has-type]
    assert second["names"] == [f"docker.io/library/a:{at}" for at in range(5)]
    assert last == {"names": [], "sizeBytes": 1}
    assert len(listed(images)) == 2
    assert images.status_json(0) == b'"images":null'
    many = store(*(NodeImage((f"i:{at}",), at) for at in range(60)))
    assert [each["sizeBytes"] for each in listed(many)] == list(range(59, 9, -1))
    every = store(*(NodeImage((f"i:{at}",), at) for at in range(60)), reported_max=-1)
    assert len(listed(every)) == 60


def test_containers_show_the_tag_and_the_digest_that_the_node_lists() -> None:
    given = f"quay.io/a@{DIGEST}"
    images = store(NodeImage((given, "quay.io/a:1"), 50))
    assert images.shown("quay.io/a:1") == images.shown(given) == ("quay.io/a:1", given)
    assert images.shown("nginx:1") == (NGINX, digest_name(NGINX))
    bare, digest = images.shown(f"nginx@{DIGEST}")
    assert bare.startswith("sha256:")  # it has no tag
    assert digest == f"docker.io/library/nginx@{DIGEST}"
    images.add(0, NGINX, 30, 0)
    assert listed(images, 0)[1]["names"] == [digest_name(NGINX), NGINX]


def test_the_image_of_sandboxes_is_pinned() -> None:
    images = store(NodeImage(("registry.k8s.io/pause:3.10.1",), 5), NodeImage(("nginx:1",), 5))
    assert [images.image(number).pinned for number in images.numbers(0)] == [True, False]


def test_a_size_follows_from_the_name() -> None:
    sizes = [default_size(f"docker.io/library/image{at}:1") for at in range(200)]
    assert sizes == [default_size(f"docker.io/library/image{at}:1") for at in range(200)]
    assert 5_000_000 <= min(sizes) < 6_000_000
    assert 400_000_000 < max(sizes) <= 500_000_000
    assert sorted(sizes)[100] == pytest.approx(50_000_000, rel=0.3)


def test_a_pull_takes_as_long_as_the_registry_lets_it() -> None:
    pulls = ImagePulls.model_validate({"bandwidth": "100M", "latency": "300ms"})
    assert pulls.is_declared
    assert pulls.duration_ns(DEFAULT_IMAGE, 50_000_000, 0.5) == 800_000_000
    assert pulls.duration_ns(DEFAULT_IMAGE, 0, 0.5) == 300_000_000
    slow = ImageBehavior(pull_time=constant(7 * NS_PER_S))
    assert pulls.duration_ns(slow, 50_000_000, 0.5) == 7 * NS_PER_S
    assert pulls.duration_ns(slow, 0, 0.5) == 300_000_000
    assert DEFAULT_PULLS.duration_ns(DEFAULT_IMAGE, 500_000_000, 0.5) < NS_PER_S // 20


def test_images_are_declared_by_behaviours_and_annotations() -> None:
    spec = {"size": "2Gi", "pullTime": "30s", "pullError": "NotFound", "pullErrorRate": 0.5}
    found = ImageBehavior.model_validate(spec)
    assert found.size_bytes == 2 << 30
    assert found.pull_time == constant(30 * NS_PER_S)
    assert (found.error, found.error_rate) == (PullError.NOT_FOUND, 0.5)
    notes = {
        "fleet.emulator/image-size": "3G",
        "fleet.emulator/pull-time": "2s",
        "fleet.emulator/pull-error": "RateLimited",
    }
    image = select_behavior((), (), "default", tuple(notes.items())).container("c").image
    assert dict(image) == {
        "size_bytes": 3_000_000_000,
        "pull_time": constant(2 * NS_PER_S),
        "error": PullError.RATE_LIMITED,
        "error_rate": 1.0,
    }
    wrong = dict.fromkeys(notes, "?")
    declared = PodBehavior(name="b", containers=(ContainerBehavior(image=found),))
    assert select_behavior((declared,), {}, "d", wrong).container("c").image == found


@pytest.mark.parametrize("error", PullError)
def test_every_error_names_its_image_or_its_cause(error: PullError) -> None:
    text = pull_error_text(error, parse_image("nginx:nope"))
    assert "docker.io/library/nginx:nope" in text or error is PullError.SIGNATURE_INVALID
    assert "\n" not in text


def test_a_missing_tag_is_told_as_containerd_tells_it() -> None:
    name = "docker.io/library/nginx:nope"
    assert pull_error_text(PullError.NOT_FOUND, parse_image("nginx:nope")) == (
        f'rpc error: code = NotFound desc = failed to pull and unpack image "{name}": '
        f'failed to resolve reference "{name}": {name}: not found'
    )
