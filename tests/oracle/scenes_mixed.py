"""Scenes in which two things of a pod's life come together."""

from typing import Any

from oracle.normalisation import Json
from oracle.objects_of_scenes import (
    ALWAYS,
    PAUSE,
    SHELL,
    config_map,
    container,
    exec_probe,
    pod,
    probe,
    secret,
)
from oracle.scene import Scene, container_status, restarts, waiting

SEES_S = 8.0
"""A sync that failed is tried again after 10 to 15 s, what it reports comes at once."""
LOG = "/dev/termination-log"
MOUNTS = [{"name": "d", "mountPath": "/d"}]
SHARED = [{"name": "d", "emptyDir": {}}]


def hook(script: str) -> Json:
    """Return a hook that runs a script."""
    return {"exec": {"command": ["sh", "-c", script]}}


def waits_for_another(scene: Scene) -> None:
    """Containers wait for what others of the pod write."""
    scene.create(
        pod(
            "shared",
            container("writes", "sleep 4; touch /d/ok; sleep 900", volumeMounts=MOUNTS),
            container(
                "reads",
                "until [ -e /d/ok ]; do sleep 1; done; exit 4",
                volumeMounts=MOUNTS,
            ),
            volumes=SHARED,
            restartPolicy="OnFailure",
        ),
    )
    scene.wait(
        "shared",
        lambda each: "terminated" in container_status(each, "reads").get("state", {}),
        "reads ends",
    )
    scene.pause()
    scene.delete("shared")


def slow_probes(scene: Scene) -> None:
    """Probes that begin late, need two successes, take too long, or speak a lot."""
    needs_two = exec_probe(
        "[ -e /tmp/ok ]", initialDelaySeconds=3, successThreshold=2, periodSeconds=5
    )
    words = f"echo {'words ' * 60}; echo second line"
    speaks = exec_probe(f"{words}; cat /tmp/ok", failureThreshold=20)
    kills = exec_probe("sleep 7", timeoutSeconds=2, failureThreshold=2, periodSeconds=3)
    late = "trap 'exit 0' TERM; sleep 4; touch /tmp/ok; sleep 900"
    scene.create(
        pod("two", container(script=late, readinessProbe=needs_two)),
        pod("speaks", container(script=late, startupProbe=speaks)),
        pod("kills", container(script="trap 'exit 0' TERM; sleep 900", livenessProbe=kills)),
    )
    scene.until_ready("two")
    scene.until_ready("speaks")
    scene.wait("kills", lambda each: restarts(each) >= 1, "restarts")
    scene.pause()
    scene.delete("two", "speaks", "kills")


def deadlines(scene: Scene) -> None:
    """A deadline passes in an init container, in a back-off, while an image is missing."""
    init = container("i", "sleep 900")
    scene.create(
        pod("init", initContainers=[init], activeDeadlineSeconds=5),
        pod("crashes", container(script="exit 1"), activeDeadlineSeconds=14),
        pod(
            "unpulled",
            container(image="registry.k8s.io/oracle/nowhere:2"),
            activeDeadlineSeconds=6,
            notes={"pull-error": "NotFound"},
        ),
        pod(
            "unmounted",
            volumes=[{"name": "v", "secret": {"secretName": "none"}}],
            activeDeadlineSeconds=6,
        ),
        pod(
            "side",
            initContainers=[container("s", "sleep 900", **ALWAYS)],
            activeDeadlineSeconds=6,
            restartPolicy="Never",
        ),
    )
    scene.until_over("init", "crashes", "unmounted", "unpulled", "side")
    scene.pause()
    scene.delete("init", "crashes", "unmounted", "unpulled", "side")


def deleted_in_between(scene: Scene) -> None:
    """Pods are deleted in a back-off, in a hook, in an init container, before a probe passes."""
    hooked = container(script="sleep 900", lifecycle={"postStart": hook("sleep 12")})
    never_up = container(
        script="trap 'exit 7' TERM; sleep 900",
        startupProbe=exec_probe("false", failureThreshold=90),
    )
    deaf = container("i", "trap '' TERM; sleep 900")
    side = container("s", "trap 'sleep 1; exit 9' TERM; sleep 900", **ALWAYS)
    scene.create(
        pod("backs-off", container(script="exit 4")),
        pod("hooked", hooked),
        pod("starting", never_up),
        pod("deaf", initContainers=[side, deaf]),
    )
    scene.wait("backs-off", lambda each: restarts(each) >= 1, "restarts")
    scene.until_running("starting")
    scene.pause()
    scene.delete("backs-off", "hooked", "starting", "deaf")


def same_name(scene: Scene) -> None:
    """A pod is deleted by force and made again at once, by the same name."""
    first = container(script="trap 'sleep 4; exit 0' TERM; sleep 900")
    scene.create(pod("again", first, terminationGracePeriodSeconds=20))
    scene.until_running("again")
    scene.pause()
    scene.delete("again", grace_s=0)
    scene.create(pod("again", container(script="sleep 900")))
    scene.until_running("again")
    scene.pause()
    scene.delete("again")
    scene.create(pod("again", container(script="exit 0"), restartPolicy="Never"))
    scene.until_over("again")
    scene.pause()
    scene.delete("again")


def stops_in_order(scene: Scene) -> None:
    """Sidecars stop in turn once the others have, each in its own time, and one too late."""

    def slow(name: str, seconds: int, code: int, **fields: Any) -> Json:
        return container(name, f"trap 'sleep {seconds}; exit {code}' TERM; sleep 900", **fields)

    made = pod(
        "ordered",
        slow("a", 2, 3),
        slow("b", 1, 0),
        initContainers=[
            slow("first", 1, 5, **ALWAYS),
            container("then", "true"),
            slow("second", 2, 6, **ALWAYS),
        ],
        terminationGracePeriodSeconds=20,
    )
    late = pod(
        "late",
        slow("a", 3, 0),
        initContainers=[slow("s", 30, 0, lifecycle={"preStop": hook("sleep 1")}, **ALWAYS)],
        terminationGracePeriodSeconds=6,
    )
    once = pod(
        "once",
        container("main", "sleep 4; exit 3"),
        initContainers=[slow("s", 1, 7, **ALWAYS)],
        restartPolicy="Never",
        terminationGracePeriodSeconds=10,
    )
    scene.create(made, late, once)
    scene.until_running("ordered", "late")
    scene.until_over("once")
    scene.pause()
    scene.delete("ordered", "late", "once")


def hooks_too_long(scene: Scene) -> None:
    """A hook takes longer than the pod's grace; a pod is given less grace than its hook takes."""

    def hooked(name: str, seconds: int, grace_s: int) -> Json:
        made = container(
            script="trap 'exit 0' TERM; sleep 900", lifecycle={"preStop": hook(f"sleep {seconds}")}
        )
        return pod(name, made, terminationGracePeriodSeconds=grace_s)

    sleeps = container(lifecycle={"preStop": {"sleep": {"seconds": 3}}})
    scene.create(
        hooked("long", 30, 4),
        hooked("shortened", 8, 30),
        pod("sleeps", sleeps, terminationGracePeriodSeconds=30),
    )
    scene.until_running("long", "shortened", "sleeps")
    scene.pause()
    scene.ask_to_delete("long", "sleeps")
    scene.ask_to_delete("shortened")
    scene.pause(2)
    scene.delete("long", "shortened", "sleeps", grace_s=2)


def changed_while_stopping(scene: Scene) -> None:
    """Labels, a debugger and a status are written to a pod that stops."""
    made = container(
        script="trap 'sleep 9; exit 0' TERM; sleep 900", readinessProbe=exec_probe("true")
    )
    scene.create(pod("stops", made, terminationGracePeriodSeconds=30))
    scene.until_ready("stops")
    scene.pause()
    scene.ask_to_delete("stops")
    scene.pause(2)
    scene.patch("pods", "stops", {"metadata": {"labels": {"a": "b"}}})
    debugger = {**container("debugger", "sleep 2"), "terminationMessagePolicy": "File"}
    scene.patch(
        "pods", "stops", {"spec": {"ephemeralContainers": [debugger]}}, "ephemeralcontainers"
    )
    said = {"type": "oracle.example.com/seen", "status": "True"}
    scene.patch("pods", "stops", {"status": {"conditions": [said]}}, "status")
    scene.until(lambda side: scene.get(side, "pods", "stops") is None, "stops is gone")


def optional_sources(scene: Scene) -> None:
    """Optional and immutable objects, defaults of modes, and variables that change."""
    volumes: list[Json] = [
        {"name": "c", "configMap": {"name": "later", "optional": True, "defaultMode": 256}},
        {"name": "s", "secret": {"secretName": "later", "optional": True}},
    ]
    mounts = [{"name": each["name"], "mountPath": f"/{each['name']}"} for each in volumes]
    env = [{"name": "V", "valueFrom": {"configMapKeyRef": {"name": "value", "key": "v"}}}]
    speaks = container(script=f"echo $(V) > {LOG}; sleep 6; exit 1", env=env)
    scene.create({**config_map("fixed", a="1"), "immutable": True}, config_map("value", v="1"))
    scene.create(
        pod("optional", container(volumeMounts=mounts), volumes=volumes),
        pod(
            "fixed",
            container(
                envFrom=[{"configMapRef": {"name": "fixed"}}],
                volumeMounts=[{"name": "f", "mountPath": "/f"}],
            ),
            volumes=[{"name": "f", "configMap": {"name": "fixed"}}],
        ),
        pod("speaks", speaks),
    )
    scene.until_running("optional", "fixed", "speaks")
    scene.pause()
    scene.create(config_map("later", a="1"), secret("later", b="2"))
    scene.patch("configmaps", "value", {"data": {"v": "2"}})
    scene.wait("speaks", lambda each: restarts(each) >= 2, "restarts twice")
    scene.pause()
    scene.delete("optional", "fixed", "speaks")


def accounts(scene: Scene) -> None:
    """ServiceAccounts of their own: with no token, one with an audience, one that is missing."""
    token = {"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 600}}
    volumes = [{"name": "t", "projected": {"sources": [token]}}]
    mounts = [{"name": "t", "mountPath": "/t"}]
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "own"}}
    scene.create(account)
    scene.pause()
    scene.create(
        pod("none", automountServiceAccountToken=False),
        pod("own", serviceAccountName="own"),
        pod("audience", container(volumeMounts=mounts), volumes=volumes, serviceAccountName="own"),
    )
    scene.until_running("none", "own", "audience")
    scene.pause()
    scene.delete("own", plural="serviceaccounts")
    scene.pause()
    scene.create(pod("keeps"))
    scene.until_running("keeps")
    scene.delete("none", "own", "audience", "keeps")


def images(scene: Scene) -> None:
    """Images by a digest, without a registry or a tag, one of two containers, always pulled."""
    digest = SHELL.replace(":1.36", "@sha256:" + "5e" * 32)
    scene.create(
        pod("digest", container(image=digest)),
        pod("untagged", container(image="registry.k8s.io/oracle/untagged")),
        pod("latest", container(image="registry.k8s.io/oracle/latest:latest")),
        pod(
            "twice",
            container("a", image="registry.k8s.io/oracle/twice:1"),
            container("b", image="registry.k8s.io/oracle/twice:1"),
        ),
        pod("always", container(image=PAUSE, imagePullPolicy="Always")),
        pod("never", container(image="registry.k8s.io/oracle/never:1", imagePullPolicy="Never")),
    )
    scene.until_running("digest", "untagged", "latest", "twice", "always")
    scene.wait("never", lambda each: bool(waiting(each)), "waits")
    scene.pause(SEES_S)
    scene.delete("digest", "untagged", "latest", "twice", "always", "never")


def signals(scene: Scene) -> None:
    """Containers stop by signals of their own, and by policies of their own."""
    stops = {"stopSignal": "SIGUSR1"}
    own = container(script="trap 'exit 5' USR1; sleep 900", lifecycle=stops)
    scene.create(
        pod("signal", own, os={"name": "linux"}),
        pod(
            "policies",
            container("a", "sleep 2; exit 1", restartPolicy="Never"),
            container("b", "sleep 2; exit 1", restartPolicy="OnFailure"),
            container("c", "sleep 900"),
        ),
    )
    scene.until_running("signal")
    scene.wait("policies", lambda each: restarts(each, "b") >= 1, "b restarts")
    scene.pause()
    scene.delete("signal", "policies")


def init_troubles(scene: Scene) -> None:
    """Init containers that cannot be created, that fail, and that come after a sidecar."""
    missing = [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "x"}}}]
    once = "[ -e /d/x ] && exit 0; touch /d/x; exit 2"
    scene.create(
        pod("uncreated", initContainers=[container("i", env=missing)]),
        pod(
            "on-failure",
            container(script="exit 0"),
            initContainers=[container("i", once, volumeMounts=MOUNTS)],
            volumes=SHARED,
            restartPolicy="OnFailure",
        ),
        pod(
            "side-fails",
            container(script="sleep 900"),
            initContainers=[
                container("s", "exit 1", **ALWAYS),
                container("i", "sleep 3"),
            ],
            restartPolicy="Never",
        ),
        pod(
            "init-after",
            container(script="exit 1"),
            initContainers=[container("s", "sleep 900", **ALWAYS), container("i", "exit 1")],
            restartPolicy="Never",
        ),
    )
    scene.until_over("on-failure", "init-after")
    scene.wait("side-fails", lambda each: restarts(each, "s") >= 1, "restarts")
    scene.pause()
    scene.delete("uncreated", "on-failure", "side-fails", "init-after")


def gates_and_conditions(scene: Scene) -> None:
    """A gate that a controller opened before the pod was ready; a disruption that comes first."""
    gate = "oracle.example.com/open"
    probed = container(
        script="sleep 3; touch /tmp/ok; sleep 900", readinessProbe=exec_probe("[ -e /tmp/ok ]")
    )
    scene.create(
        pod("gated", probed, readinessGates=[{"conditionType": gate}]),
        pod("disrupted", container(script="sleep 9; exit 3"), restartPolicy="Never"),
    )
    said = {"type": gate, "status": "True"}
    scene.patch("pods", "gated", {"status": {"conditions": [said]}}, "status")
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "ByHand", "message": "m"}
    scene.until_running("disrupted")
    scene.patch("pods", "disrupted", {"status": {"conditions": [disrupted]}}, "status")
    scene.until_ready("gated")
    scene.until_over("disrupted")
    scene.pause()
    scene.delete("gated", "disrupted")


def many(scene: Scene) -> None:
    """A dozen pods at once, which go at once."""
    names = [f"p{at}" for at in range(12)]
    scene.create(*(pod(name, container("a"), container("b")) for name in names))
    scene.until_running(*names)
    scene.pause()
    scene.delete(*names)


def liveness_of_sidecars(scene: Scene) -> None:
    """A sidecar's liveness fails while the others run."""
    side = container(
        "s",
        "trap 'exit 0' TERM; touch /tmp/good; sleep 4; rm /tmp/good; sleep 900",
        livenessProbe=exec_probe("cat /tmp/good", failureThreshold=2),
        **ALWAYS,
    )
    ready = container(
        "r",
        "trap 'exit 0' TERM; sleep 4; touch /tmp/ok; sleep 900",
        readinessProbe=exec_probe("[ -e /tmp/ok ]", initialDelaySeconds=2, periodSeconds=5),
        **ALWAYS,
    )
    tcp = probe({"tcpSocket": {"port": 8080}}, failureThreshold=1)
    main = container("main", ports=[{"containerPort": 8080}], livenessProbe=tcp)
    scene.create(pod("side", main, initContainers=[side, ready]))
    scene.until_ready("side")
    scene.wait("side", lambda each: restarts(each, "s") >= 1, "restarts")
    scene.pause()
    scene.delete("side")


def confined(scene: Scene) -> None:
    """Profiles of AppArmor and seccomp, and capabilities."""

    def as_context(name: str, **context: object) -> Json:
        return pod(name, container(securityContext=context))

    scene.create(
        as_context("seccomp", seccompProfile={"type": "RuntimeDefault"}),
        as_context("caps", capabilities={"add": ["NET_ADMIN"], "drop": ["ALL"]}),
        as_context("read-only", readOnlyRootFilesystem=True, allowPrivilegeEscalation=False),
        as_context("privileged", privileged=True),
        as_context("unconfined", appArmorProfile={"type": "Unconfined"}),
    )
    names = ("seccomp", "caps", "read-only", "privileged", "unconfined")
    scene.until_running(*names)
    scene.pause()
    scene.delete(*names)


def sleep_hooks(scene: Scene) -> None:
    """Hooks that sleep: after the start, before the stop, and not at all."""

    def hooked(name: str, **seconds: int) -> Json:
        hooks = {at: {"sleep": {"seconds": each}} for at, each in seconds.items()}
        return pod(name, container(lifecycle=hooks), terminationGracePeriodSeconds=10)

    scene.live(
        hooked("after", postStart=2),
        hooked("both", postStart=1, preStop=2),
        hooked("none", preStop=0),
    )


def unready_while_stopping(scene: Scene) -> None:
    """A container that stops is no longer ready before it has ended; one is deleted thrice."""
    script = "touch /tmp/ok; trap 'rm /tmp/ok; sleep 7; exit 0' TERM; sleep 900"
    made = container(script=script, readinessProbe=exec_probe("cat /tmp/ok", failureThreshold=1))
    deaf = container(script="trap '' TERM; sleep 900")
    scene.create(
        pod("stops", made, terminationGracePeriodSeconds=20),
        pod("thrice", deaf, terminationGracePeriodSeconds=40),
    )
    scene.until_ready("stops")
    scene.until_running("thrice")
    scene.pause()
    scene.ask_to_delete("stops", "thrice")
    scene.pause(2)
    scene.ask_to_delete("thrice", grace_s=60)
    scene.pause(2)
    scene.delete("thrice", grace_s=3)
    scene.until(lambda side: scene.get(side, "pods", "stops") is None, "stops is gone")


def deaf_ends(scene: Scene) -> None:
    """Containers that ignore SIGTERM, of pods that are over: by a deadline, by a probe."""
    deaf = "trap '' TERM; sleep 900"
    live = exec_probe("false", failureThreshold=1, initialDelaySeconds=2)
    scene.create(
        pod("deadline", container(script=deaf), activeDeadlineSeconds=5),
        pod(
            "two",
            container("a", deaf),
            container("b", "sleep 2; exit 3"),
            activeDeadlineSeconds=6,
            restartPolicy="OnFailure",
        ),
        pod(
            "never",
            container(script=deaf, livenessProbe=live),
            restartPolicy="Never",
        ),
    )
    scene.until_over("deadline", "two", "never")
    scene.pause(6)
    scene.delete("deadline", "two", "never")


SCENES = (
    init_troubles,
    deadlines,
    slow_probes,
    deleted_in_between,
    optional_sources,
    stops_in_order,
    hooks_too_long,
    changed_while_stopping,
    same_name,
    waits_for_another,
    accounts,
    images,
    signals,
    gates_and_conditions,
    many,
    liveness_of_sidecars,
    confined,
    sleep_hooks,
    unready_while_stopping,
    deaf_ends,
)
