"""What CSI drivers want of kubelets for each volume: tokens, and to be published all the time."""

import pytest
from test_volume_timing import DATA, DRIVER, attach_in_turn, claim, reads, started
from world.api_server import Answer, refusal
from world.simulation import Simulation, pod_json
from world.strategic_merge import Object
from world.transport import Sent

pytest_plugins = ("sim_encodings",)

INLINE: Object = {"name": "inline", "csi": {"driver": DRIVER}}
NO_TOKEN = (
    "kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: "
    "failed to fetch token: "
)
VAULT = {"audience": "vault", "expirationSeconds": 600}
RESYNC_S = 95
VOLUMES = [DATA, INLINE]


def driver(sim: Simulation, **spec: object) -> None:
    modes = ["Persistent", "Ephemeral"]
    sim.server.create(("csidrivers", "", DRIVER), {"spec": {"volumeLifecycleModes": modes, **spec}})
    sim.run_for(seconds=1)


def asked(sim: Simulation, since_s: float = 0) -> list[Sent]:
    """Return the requests for a driver's tokens: no pod here has another one."""
    return sim.calls(verb="POST", path="/token", since_s=since_s)


def create(sim: Simulation, volume: Object, field: str = "volumeMounts") -> None:
    """Create a pod with this volume alone: no token of its own."""
    pod = pod_json("db", "n-0")
    pod["spec"]["volumes"] = [volume]
    [container] = pod["spec"]["containers"]
    del container["volumeMounts"]
    container[field] = [{"name": volume["name"], "mountPath": "/v", "devicePath": "/dev/v"}]
    assert sim.server.create(("pods", "default", "db"), pod) is not None


def run_pod(volume: Object, **spec: object) -> Simulation:
    """Start a pod with one volume; return when it runs, or waits for that volume."""
    sim = started()
    driver(sim, **spec)
    claim(sim.server)
    create(sim, volume)
    attach_in_turn(sim, 5)
    return sim


@pytest.mark.parametrize("volume", VOLUMES)
def test_a_volume_is_published_with_the_tokens_that_its_driver_wants(volume: Object) -> None:
    sim = run_pod(volume, tokenRequests=[VAULT, {"audience": ""}])
    assert sim.phase("db") == "Running"
    assert [each.path for each in asked(sim)] == [
        "/api/v1/namespaces/default/serviceaccounts/default/token"
    ] * 2
    since_s = sim.now_s
    sim.run_for(seconds=1_200)  # a driver that is not asked again needs no new ones
    assert not asked(sim, since_s)
    sim.server.delete_pod("db", grace_s=1)
    sim.run_for(seconds=30)
    create(sim, volume)
    sim.run_for(seconds=30)
    assert len(asked(sim, since_s)) == 2  # another pod, other tokens


def refuse_tokens(sim: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server answer everything but requests for tokens."""
    answer = sim.server.handle

    def handle(method: str, path: str, body: bytes) -> Answer:
        if path.endswith("/token"):
            return sim.server.encoded(refusal(403, "Forbidden", "not this audience"))
        return answer(method, path, body)

    monkeypatch.setattr(sim.server, "handle", handle)


@pytest.mark.parametrize("volume", VOLUMES)
def test_a_token_that_is_refused_is_told_and_asked_for_again(
    volume: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = started()
    driver(sim, tokenRequests=[VAULT, {"audience": "other"}])
    claim(sim.server)
    with monkeypatch.context() as patch:
        refuse_tokens(sim, patch)
        create(sim, volume)
        attach_in_turn(sim, 5)
        assert sim.phase("db") == "Pending"
        name = "pv-1" if volume is DATA else "inline"
        text = f'MountVolume.SetUp failed for volume "{name}" : {NO_TOKEN}not this audience'
        assert list(sim.said("FailedMount")) == [text]
        assert 3 <= len(asked(sim)) <= 6  # the first one only, with its back-off
    sim.run_for(seconds=20)
    assert sim.phase("db") == "Running"


def test_a_token_that_is_good_is_given_while_no_other_one_is_to_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sim = run_pod(INLINE, requiresRepublish=True, tokenRequests=[VAULT])
    refuse_tokens(sim, monkeypatch)
    sim.run_for(seconds=560)  # asked for since 80 % of its life
    assert asked(sim)[-1].code == 403
    assert not sim.said("FailedMount")
    sim.run_for(seconds=150)
    [text] = sim.said("FailedMount")
    assert " expired and refresh failed: not this audience" in text
    assert 'token "default"/"default"/[]string{"vault"}/600/v1.BoundObjectReference{' in text
    assert sim.phase("db") == "Running"


@pytest.mark.parametrize("volume", VOLUMES)
def test_a_volume_is_published_again_at_each_sync(volume: Object) -> None:
    sim = run_pod(volume, requiresRepublish=True)
    assert sim.phase("db") == "Running"
    since_s = sim.now_s
    sim.run_for(seconds=900)
    assert sim.phase("db") == "Running"
    found = reads(sim, since_s)
    if volume is DATA:
        rounds = found.count("persistentvolumes")
        assert 10 <= rounds <= 15  # each 60 to 90 s
        once = ["persistentvolumeclaims", "persistentvolumes"]
        again = ["volumeattachments", "volumeattachments", "persistentvolumeclaims"]
        assert found == [*once, *again] * rounds
    assert not sim.said("FailedMount")


@pytest.mark.parametrize("volume", VOLUMES)
def test_a_volume_that_is_published_again_has_new_tokens_near_their_end(volume: Object) -> None:
    sim = run_pod(volume, requiresRepublish=True, tokenRequests=[VAULT])
    assert sim.phase("db") == "Running"
    assert len(asked(sim)) == 1
    since_s = sim.now_s
    sim.run_for(seconds=460)  # until 80 % of 600 s, less 10 s
    assert not asked(sim, since_s)
    sim.run_for(seconds=130)
    assert len(asked(sim, since_s)) == 1
    sim.run_for(seconds=3_600)
    assert 6 <= len(asked(sim, since_s)) <= 8


def test_a_volume_that_is_not_published_again_is_told_and_its_pod_runs_on() -> None:
    sim = run_pod(DATA, requiresRepublish=True)
    annotations = {"fleet.emulator/mount-error": "the secret is gone"}
    sim.server.update("pods", "db", {"metadata": {"annotations": annotations}}, "default")
    sim.run_for(seconds=RESYNC_S)
    error = "rpc error: code = Internal desc = the secret is gone"
    assert list(sim.said("FailedMount")) == [
        f'MountVolume.SetUp failed for volume "pv-1" : {error}'
    ]
    assert sim.phase("db") == "Running"
    nothing = {"fleet.emulator/mount-error": None}
    sim.server.update("pods", "db", {"metadata": {"annotations": nothing}}, "default")
    sim.run_for(seconds=130)
    count = sum(sim.said("FailedMount").values())
    sim.run_for(seconds=300)
    assert sum(sim.said("FailedMount").values()) == count
    sim.server.delete_pod("db", grace_s=1)
    sim.run_for(seconds=30)
    assert sim.kubelet().pods is None


def test_a_driver_may_want_it_later_and_no_more() -> None:
    sim = run_pod(DATA)
    since_s = sim.now_s
    sim.run_for(seconds=300)
    assert "volumeattachments" not in reads(sim, since_s)
    sim.server.update("csidrivers", DRIVER, {"spec": {"requiresRepublish": True}})
    sim.run_for(seconds=RESYNC_S)
    assert "volumeattachments" in reads(sim, since_s)
    sim.server.update("csidrivers", DRIVER, {"spec": {"requiresRepublish": False}})
    sim.run_for(seconds=RESYNC_S)
    since_s = sim.now_s
    sim.run_for(seconds=300)
    assert "volumeattachments" not in reads(sim, since_s)


def test_raw_block_volumes_have_no_tokens() -> None:
    sim = started()
    driver(sim, tokenRequests=[VAULT])
    claim(sim.server)
    sim.server.update("persistentvolumes", "pv-1", {"spec": {"volumeMode": "Block"}})
    create(sim, DATA, "volumeDevices")
    attach_in_turn(sim, 5)
    assert sim.phase("db") == "Running"
    assert not asked(sim)


def test_a_profile_without_the_driver_asks_for_no_token() -> None:
    sim = Simulation().run_for(seconds=60)
    driver(sim, tokenRequests=[VAULT])
    create(sim, INLINE)
    sim.run_for(seconds=30)
    assert sim.phase("db") == "Pending"
    assert not asked(sim)
