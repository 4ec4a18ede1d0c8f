import pytest
from world.pod_world import (
    NODE,
    TOKEN_VOLUME,
    UID,
    World,
    container,
    make_pod,
    needs,
    replaced,
    turn_of,
)

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.effects import (
    ApiCall,
    Op,
    Outbox,
    Reply,
    ReplyKind,
    SetTimer,
    StartWatch,
    StopWatch,
    Timer,
    TokenRequest,
    WatchEvent,
    WatchKind,
)
from fleet.k8s.pods import EnvRef, EventType, ObjectSource, Pod, Token, VolumeSpec
from fleet.k8s.volumes import ObjectData
from fleet.kubelet.events import Reason
from fleet.kubelet.volumes.pod_volume import MountResult, mount_seen_ns
from fleet.kubelet.volumes.volume_manager import VolumeManager
from fleet.kubelet.volumes.watched_objects import references
from fleet.runtime import programs

CM, SECRET = WatchKind.CONFIG_MAP, WatchKind.SECRET
FAILED = 'MountVolume.SetUp failed for volume "%s" : %s'
ROOT_CA = "kube-root-ca.crt"
ENV = World().env
RUNTIME = ENV.runtime_of(NODE, "n", "10.0.0.1", "10.1.0.0/24")
REFUSED = Reply(ReplyKind.REFUSED, None, 403, "no")
REQUEST = TokenRequest("default", "default", "", 3607, "web", UID, "kube-api-access-9zkmg")
PLAIN = make_pod(volumes=(VolumeSpec("cfg", "configMap", (ObjectSource("cfg"),)),))


def asked(request: TokenRequest) -> ApiCall:
    return ApiCall(NODE, Op.CREATE_TOKEN, UID, request)


def manager(pod: Pod) -> VolumeManager:
    volumes = VolumeManager(RUNTIME)
    out: Outbox = []
    volumes.register_pod(pod, turn_of(ENV, 0, out))
    volumes.begin(pod, turn_of(ENV, 0, out))
    return volumes


def tell(volumes: VolumeManager, event: EventType, name: str = "cfg") -> list[str]:
    record = ObjectData(name, "1") if event is not EventType.SYNCED else None
    return list(volumes.on_object_event(WatchEvent(CM, event, record, "default", name)))


def attempt(volumes: VolumeManager, pod: Pod, now_ns: int) -> tuple[MountResult, list[str], Outbox]:
    out: Outbox = []
    result, events = volumes.attempt(pod, turn_of(ENV, now_ns, out))
    assert {reason for reason, _ in events} <= {Reason.FAILED_MOUNT}
    return result, [text for _, text in events], out


def test_secrets_are_watched_before_config_maps_and_each_once() -> None:
    sources = (
        EnvRef("ConfigMap", name="env", optional=True),
        EnvRef("Secret", name="s", optional=False),
    )
    pod = make_pod(
        container(script=needs(*sources)),
        container("d", script=needs(*sources)),
        pull_secrets=("registry",),
    )
    assert list(references(pod)) == [
        (SECRET, "default", "registry"),
        (SECRET, "default", "s"),
        (CM, "default", "env"),
        (CM, "default", ROOT_CA),
    ]


def test_an_idle_watch_is_stopped_once_it_has_synced() -> None:
    """Source: stopIfIdle: "Ensure that we don't try to stop not yet initialized reflector"."""
    sources = (EnvRef("ConfigMap", name="cfg", optional=False),)
    pod = make_pod(container(script=needs(*sources)), volumes=())
    out: Outbox = []
    volumes = VolumeManager(RUNTIME)
    volumes.register_pod(pod, turn_of(ENV, 0, out))
    for is_synced in (False, True):
        timer = next(each for each in out if isinstance(each, SetTimer))
        out.clear()
        if is_synced:
            tell(volumes, EventType.SYNCED)
        volumes.on_timer(pod, turn_of(ENV, timer.due_ns, out))
        stop = StopWatch(NODE, CM, "default", "cfg", is_idle=True)
        assert (stop in out) == is_synced, out


NEEDS_A_SECRET = container("c", script=needs(EnvRef("Secret", name="s", optional=False)))


@pytest.mark.parametrize(
    ("mangled", "watched"),
    [
        (replaced(PLAIN, containers=(NEEDS_A_SECRET,)), (SECRET, "default", "s")),
        (replaced(PLAIN, namespace=""), (CM, "", "cfg")),
    ],
    ids=["spec", "namespace"],
)
def test_a_pod_that_was_changed_leaves_no_watch(
    mangled: Pod, watched: tuple[WatchKind, str, str]
) -> None:
    """No API server allows it; what came mangled ended the kubelet when the pod ended."""
    volumes = manager(PLAIN)
    out: Outbox = []
    volumes.update_pod(PLAIN, mangled, turn_of(ENV, 0, out))
    volumes.unregister_pod(mangled, turn_of(ENV, 0, out))
    assert {each[1:] for each in out if isinstance(each, StartWatch)} == {watched}
    stopped = {each[1:4] for each in out if isinstance(each, StopWatch)}
    assert stopped == {watched, (CM, "default", "cfg")}


@pytest.mark.parametrize(("life_s", "due_s"), [(3607, 2886), (48 * 3600, 24 * 3600)])
def test_tokens_come_first_then_the_objects(life_s: int, due_s: int) -> None:
    pod = make_pod()
    volumes = manager(pod)
    tell(volumes, EventType.ADDED, ROOT_CA)
    tell(volumes, EventType.SYNCED, ROOT_CA)
    result, _, out = attempt(volumes, pod, 0)
    assert result is MountResult.WAITING
    assert out == [ApiCall(NODE, Op.CREATE_TOKEN, UID, REQUEST)]
    out.clear()
    reply = Reply(ReplyKind.OK, Token(ENV.wall_s(0) + life_s))
    assert volumes.on_token(pod, asked(REQUEST), reply, turn_of(ENV, 0, out))
    while True:  # in hops
        (refresh,) = out
        assert isinstance(refresh, SetTimer)
        out.clear()
        if due := volumes.tokens.due(turn_of(ENV, refresh.due_ns, out)):
            break
    assert due == [REQUEST]
    # 80 % of its life, or a day; up to 10 s sooner, and up to a resync later.
    assert due_s - 11 < refresh.due_ns / NS_PER_S < due_s + 75
    assert attempt(volumes, pod, 0)[0] is MountResult.MOUNTED
    turn = turn_of(ENV, refresh.due_ns + 1, out)
    assert volumes.tokens.due(turn) == []
    assert not volumes.on_token(pod, asked(REQUEST), Reply(ReplyKind.REFUSED), turn)
    assert volumes.tokens.due(turn_of(ENV, turn.now_ns + 60 * NS_PER_S, out)) == []
    assert volumes.tokens.due(turn_of(ENV, turn.now_ns + 90 * NS_PER_S, out)) == [REQUEST]


def test_a_token_is_kept_while_its_pod_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_plug_ins", [lambda _pod, _spec: None])
    pod = make_pod()
    volumes = manager(pod)
    attempt(volumes, pod, 0)
    (source,) = TOKEN_VOLUME.tokens
    assert volumes.tokens.text(UID, source) == ""
    for text in ("first", "renewed"):
        reply = Reply(ReplyKind.OK, Token(ENV.wall_s(0) + 3607, text))
        volumes.on_token(pod, asked(REQUEST), reply, turn_of(ENV, 0, []))
        assert volumes.tokens.text(UID, source) == text
    volumes.unregister_pod(pod, turn_of(ENV, 0, []))
    assert volumes.tokens.text(UID, source) == ""


def test_two_tokens_are_both_awaited_and_each_is_renewed_in_its_time() -> None:
    (source,) = TOKEN_VOLUME.tokens
    two = (source, source._replace(audience="vault", expiration_s=86400))
    pod = make_pod(volumes=(VolumeSpec(REQUEST.volume, "projected", (), two),))
    volumes = manager(pod)
    vault = REQUEST._replace(audience="vault", expiration_s=86400)
    assert attempt(volumes, pod, 0)[2] == [asked(REQUEST), asked(vault)]
    turn = turn_of(ENV, 0, [])
    assert not volumes.on_token(pod, asked(REQUEST), Reply(ReplyKind.OK), turn)
    assert volumes.on_token(pod, asked(vault), REFUSED, turn)
    attempt(volumes, pod, 0)
    assert attempt(volumes, pod, NS_PER_S)[2][:-1] == [asked(vault)]  # the other one is known
    assert volumes.on_token(pod, asked(vault), Reply(ReplyKind.OK), turn)
    assert not volumes.on_token(pod, asked(vault), Reply(ReplyKind.OK), turn)
    assert volumes.tokens.due(turn_of(ENV, 3607 * NS_PER_S, [])) == [REQUEST]  # by its own life


def test_a_refused_token_fails_the_mount_and_is_asked_for_again() -> None:
    pod = make_pod(
        token_suffix="9zkmg", volumes=(TOKEN_VOLUME._replace(name="kube-api-access-00000"),)
    )
    volumes = manager(pod)
    tell(volumes, EventType.ADDED, ROOT_CA)
    tell(volumes, EventType.SYNCED, ROOT_CA)
    attempt(volumes, pod, 0)
    request = REQUEST._replace(volume="kube-api-access-00000")
    volumes.on_token(pod, asked(request), REFUSED, turn_of(ENV, 0, []))
    assert volumes.tokens.due(turn_of(ENV, 90 * NS_PER_S, [])) == []  # the mount asks
    _, messages, out = attempt(volumes, pod, 0)
    assert messages == [
        'MountVolume.SetUp failed for volume "kube-api-access-9zkmg" : failed to fetch token: no'
    ]
    assert out == [SetTimer(NODE, NS_PER_S // 2, Timer.VOLUMES, UID)]
    _, _, out = attempt(volumes, pod, NS_PER_S)
    assert out[0] == ApiCall(NODE, Op.CREATE_TOKEN, UID, request)


def test_a_missing_object_is_looked_for_with_back_off() -> None:
    volumes = manager(PLAIN)
    tell(volumes, EventType.SYNCED)
    now_ns = 0
    given_up: list[float] = []
    tries: list[float] = []
    while len(tries) < 11:
        result, messages, out = attempt(volumes, PLAIN, now_ns)
        if messages:
            assert messages == [FAILED % ("cfg", 'configmap "cfg" not found')]
            tries.append(now_ns / NS_PER_S)
        if result is MountResult.GIVEN_UP:
            given_up.append(now_ns / NS_PER_S)
        (timer,) = out
        assert isinstance(timer, SetTimer)
        now_ns = timer.due_ns
    assert tries == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 63.5, 127.5, 249.5, 371.5]
    assert given_up == [123]  # the sync that waits; the operation goes on
    assert tell(volumes, EventType.ADDED) == []
    assert attempt(volumes, PLAIN, now_ns)[0] is MountResult.WAITING  # nobody waits now
    volumes.begin(PLAIN, turn_of(ENV, now_ns, []))
    assert attempt(volumes, PLAIN, now_ns)[0] is MountResult.MOUNTED


def test_a_cache_that_lags_is_waited_for_a_second() -> None:
    volumes = manager(PLAIN)
    result, messages, out = attempt(volumes, PLAIN, 5)
    assert (result, messages) == (MountResult.WAITING, [])
    assert out == [SetTimer(NODE, NS_PER_S + 5, Timer.VOLUMES, UID)]
    assert tell(volumes, EventType.ADDED) == []
    assert tell(volumes, EventType.SYNCED) == [UID]
    assert attempt(volumes, PLAIN, 9)[0] is MountResult.MOUNTED


def test_a_cache_that_never_syncs_fails_the_mount() -> None:
    volumes = manager(PLAIN)
    attempt(volumes, PLAIN, 0)
    _, messages, _ = attempt(volumes, PLAIN, NS_PER_S)
    assert messages == [
        FAILED % ("cfg", "failed to sync configmap cache: timed out waiting for the condition")
    ]


@pytest.mark.parametrize(
    ("second", "error"),
    [
        (ObjectSource("b", kind="Secret"), '[configmap "a" not found, secret "b" not found]'),
        (ObjectSource("a"), 'configmap "a" not found'),
    ],
)
def test_several_errors_of_one_volume_are_joined(second: ObjectSource, error: str) -> None:
    pod = make_pod(volumes=(VolumeSpec("v", "projected", (ObjectSource("a"), second)),))
    volumes = manager(pod)
    for kind, namespace, name in references(pod):
        synced = WatchEvent(kind, EventType.SYNCED, None, namespace, name)
        volumes.on_object_event(synced)
    assert attempt(volumes, pod, 0)[1] == [FAILED % ("v", error)]


def test_events_of_objects_that_nobody_refers_to_are_ignored() -> None:
    assert tell(manager(PLAIN), EventType.ADDED, "other") == []


def test_a_sync_looks_at_its_volumes_every_300_ms() -> None:
    began_ns = 7
    assert mount_seen_ns(began_ns, began_ns) == began_ns
    assert mount_seen_ns(began_ns, began_ns + 1) == began_ns + 300 * NS_PER_MS
    assert mount_seen_ns(began_ns, began_ns + 300 * NS_PER_MS) == began_ns + 300 * NS_PER_MS
