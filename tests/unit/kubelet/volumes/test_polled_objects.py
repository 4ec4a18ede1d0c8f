"""ObjectManager without watches: what is asked for, when it is good, and which answers count."""

import pytest
from world.pod_world import NODE, UID, World, container, make_pod, model_of, needs, turn_of

from fleet.clock import NS_PER_S
from fleet.k8s.effects import ApiCall, Op, Outbox, Reply, ReplyKind, WatchKind
from fleet.k8s.pods import EnvRef, ObjectSource, VolumeSpec
from fleet.k8s.volumes import ObjectData, ObjectTarget
from fleet.kubelet.environment import Environment
from fleet.kubelet.turn import Turn
from fleet.kubelet.volumes.watched_objects import ObjectKey, ObjectManager, reads_of

KEY: ObjectKey = (WatchKind.CONFIG_MAP, "default", "cfg")
SOURCE = ObjectSource("cfg")
POD = make_pod(volumes=(VolumeSpec("cfg", "configMap", (SOURCE,)),))
REFUSED = Reply(ReplyKind.REFUSED, None, 500, "etcd is away")
MISSING = Reply(ReplyKind.NOT_FOUND, None, 404, 'configmaps "cfg" not found')


def env_of(strategy: str) -> Environment:
    configuration = {"configMapAndSecretChangeDetectionStrategy": strategy}
    model = model_of(kubeletConfiguration=configuration)
    return Environment(model, World().env.draws)


def shown(version: str, *keys: str) -> Reply:
    return Reply(ReplyKind.OK, ObjectData("cfg", version, keys, texts=keys))


def turn(strategy: str, now_s: float = 0, ttl: str | None = None) -> tuple[Turn, Outbox]:
    out: Outbox = []
    made = turn_of(env_of(strategy), int(now_s * NS_PER_S), out)
    if ttl is not None:
        notes = (("node.alpha.kubernetes.io/ttl", ttl),)
        made.facts.state = made.facts.state._replace(annotations=notes)
    return made, out


def registered(strategy: str) -> ObjectManager:
    objects = ObjectManager()
    made, out = turn(strategy)
    objects.register_pod(POD, made)
    assert out == []
    return objects


def ask(objects: ObjectManager, strategy: str, now_s: float, ttl: str | None = None) -> Outbox:
    made, out = turn(strategy, now_s, ttl)
    assert objects.ask([KEY], UID, "cfg", made) == len(out)
    return out


def call(*, is_refresh: bool) -> ApiCall:
    return ApiCall(NODE, Op.GET_CONFIG_MAP, UID, ObjectTarget("default", "cfg", "cfg", is_refresh))


def take(objects: ObjectManager, strategy: str, reply: Reply, now_s: float = 0) -> None:
    objects.take(KEY, reply, turn(strategy, now_s)[0])


@pytest.mark.parametrize(
    ("ttl", "good_s", "old_s"), [(None, 59.9, 60), ("15", 14.9, 15), ("soon", 59.9, 60)]
)
def test_what_is_cached_is_good_for_the_ttl_of_the_node(
    ttl: str | None, good_s: float, old_s: float
) -> None:
    objects = registered("Cache")
    assert ask(objects, "Cache", 0, ttl) == [call(is_refresh=False)]
    take(objects, "Cache", shown("1", "a"))
    assert ask(objects, "Cache", good_s, ttl) == []
    assert ask(objects, "Cache", old_s, ttl) == [call(is_refresh=True)]


def test_a_refresh_that_fails_or_is_older_changes_nothing() -> None:
    objects = registered("Cache")
    take(objects, "Cache", shown("10", "a"))
    for reply in (REFUSED, shown("9", "b")):
        take(objects, "Cache", reply, 70)
        assert objects.texts("ConfigMap", "default", "cfg") == {"a": "a"}
        assert objects.problem(KEY, SOURCE) == ("", False)
        assert ask(objects, "Cache", 71) == [call(is_refresh=True)]
    take(objects, "Cache", shown("11", "c"), 72)
    assert objects.texts("ConfigMap", "default", "cfg") == {"c": "c"}


@pytest.mark.parametrize("strategy", ["Cache", "Get"])
def test_what_cannot_be_read_is_told_and_asked_for_anew(strategy: str) -> None:
    objects = registered(strategy)
    for reply in (REFUSED, MISSING):
        take(objects, strategy, reply)
        assert not objects.exists(*KEY)
        assert objects.problem(KEY, SOURCE) == (reply.message, False)
        assert ask(objects, strategy, 1) == [call(is_refresh=False)]
    optional = SOURCE._replace(optional=True)
    assert objects.problem(KEY, optional) == ("", False)
    take(objects, strategy, shown("1", "a"))
    assert objects.problem(KEY, SOURCE) == ("", False)


def test_get_asks_each_time_and_believes_each_answer() -> None:
    objects = registered("Get")
    take(objects, "Get", shown("10", "a"))
    assert ask(objects, "Get", 0, "300") == [call(is_refresh=False)]
    take(objects, "Get", shown("9", "b"))
    assert objects.texts("ConfigMap", "default", "cfg") == {"b": "b"}
    take(objects, "Get", REFUSED)
    assert objects.problem(KEY, SOURCE) == (REFUSED.message, False)


def test_a_container_waits_for_every_answer() -> None:
    sources = tuple(EnvRef("ConfigMap", name=name, optional=False) for name in ("a", "b", "a"))
    pod = make_pod(volumes=(), containers=(container(script=needs(*sources)),))
    objects = ObjectManager()
    made, out = turn("Get")
    objects.register_pod(pod, made)
    objects.ask_environment(pod, sources, made)
    assert [each.op for each in out if isinstance(each, ApiCall)] == [Op.GET_CONFIG_MAP] * 2
    for _ in out:
        assert objects.is_asking(UID)
        objects.on_answer(UID)
    assert not objects.is_asking(UID)
    objects.ask_environment(pod, sources, made)
    objects.forget(UID)
    assert not objects.is_asking(UID)


def test_an_answer_after_its_last_pod_is_dropped() -> None:
    objects = registered("Cache")
    made, out = turn("Cache")
    objects.unregister_pod(POD, made)
    assert out == []
    take(objects, "Cache", MISSING)
    assert not objects.exists(*KEY)


def test_a_resync_reads_pull_secrets_and_what_is_mounted() -> None:
    volumes = (*POD.spec.volumes, *POD.spec.volumes, POD.spec.volumes[0]._replace(mounted=False))
    pod = make_pod(volumes=volumes, pull_secrets=("s",))
    assert list(reads_of(pod)) == [(WatchKind.SECRET, "default", "s"), KEY, KEY]
    watched, out = turn("Watch")
    assert ObjectManager().ask([KEY], UID, "", watched) == 0
    assert out == []
