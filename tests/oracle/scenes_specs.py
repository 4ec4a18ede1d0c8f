"""Scenes of what the spec of a pod may say: its host, its names, its environment, its classes."""

from oracle.normalisation import Json
from oracle.objects_of_scenes import (
    ALWAYS,
    config_map,
    container,
    exec_probe,
    grpc_probe,
    pod,
    probe,
    resources,
    secret,
)
from oracle.scene import Scene, is_ready, restarts, waiting

SEES_S = 8.0
"""A sync that failed is tried again after 10 to 15 s, its pull or its sandbox at least once."""
REPEATS_S = 75.0
"""Each pod is synced again after 60 to 90 s."""
LOG = "/dev/termination-log"


def host_pods(scene: Scene) -> None:
    """Pods in the namespaces of their host, with users of their own, and with shared processes."""
    port = [{"containerPort": 18081}]
    scene.live(
        pod("network", container(ports=port), hostNetwork=True),
        pod("processes", hostPID=True, hostIPC=True),
        pod("shared", container("a"), container("b"), shareProcessNamespace=True),
        pod("users", hostUsers=False),
        pod("mapped", hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet"),
    )


def names_of_pods(scene: Scene) -> None:
    """Pods with a name, a domain and DNS of their own."""
    searches = [f"{letter}.example.com" for letter in "abc"]
    config = {"nameservers": ["203.0.113.1"], "searches": searches, "options": [{"name": "ndots"}]}
    scene.live(
        pod("named", hostname="web", subdomain="shop"),
        pod("whole", hostname="web", subdomain="shop", setHostnameAsFQDN=True),
        pod("default", dnsPolicy="Default"),
        pod("own", dnsPolicy="None", dnsConfig=config),
        pod("aliases", hostAliases=[{"ip": "203.0.113.7", "hostnames": ["a", "b"]}]),
        pod("overridden", hostnameOverride="other.example.com"),
    )


def too_much_dns(scene: Scene) -> None:
    """More name servers and search domains than resolv.conf takes; each sync reports it."""
    servers = [f"203.0.113.{at}" for at in range(1, 4)]
    searches = [f"{at:02}.example.com" for at in range(30)]
    scene.create(
        pod("servers", dnsConfig={"nameservers": servers}),
        pod("searches", dnsConfig={"searches": searches}),
    )
    scene.until_running("servers", "searches")
    scene.pause(REPEATS_S)
    scene.delete("servers", "searches")


def long_names(scene: Scene) -> None:
    """A name of more than 64 characters cannot be the name of a host."""
    scene.create(pod("long", hostname="h" * 40, subdomain="d" * 40, setHostnameAsFQDN=True))
    scene.pause(SEES_S + 12)
    scene.delete("long")


def environments(scene: Scene) -> None:
    """Variables of each source, which the container reports when it ends."""
    fields = ["metadata.name", "metadata.uid", "metadata.labels['app']", "spec.nodeName"]
    fields += ["spec.serviceAccountName", "metadata.namespace"]
    env: list[Json] = [
        {"name": f"F{at}", "valueFrom": {"fieldRef": {"fieldPath": each}}}
        for at, each in enumerate(fields)
    ]
    for name, each in (("CPU", "limits.cpu"), ("MEMORY", "requests.memory")):
        env.append({"name": name, "valueFrom": {"resourceFieldRef": {"resource": each}}})
    env += [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)-$(NONE)-$$(A)"},
        {"name": "A", "value": "2"},
        {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "config", "key": "c"}}},
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "s"}}},
        {
            "name": "O",
            "valueFrom": {"configMapKeyRef": {"name": "none", "key": "o", "optional": True}},
        },
    ]
    sources = [
        {"prefix": "P_", "configMapRef": {"name": "config"}},
        {"secretRef": {"name": "secret"}},
        {"configMapRef": {"name": "none", "optional": True}},
    ]
    known = " ".join(f"$({name})" for name in ("F0", "F2", "F4", "CPU", "MEMORY", "A", "C", "S"))
    script = f"echo {known} > {LOG}"
    limits = resources("250m", "64Mi")
    made = container(script=script, env=env, envFrom=sources, resources=limits)
    labelled = pod("speaks", made, restartPolicy="Never")
    labelled["metadata"]["labels"] = {"app": "web"}
    missing = {"name": "X", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "none"}}}
    scene.create(config_map("config", c="one"), secret("secret", s="two"))
    scene.create(
        labelled,
        pod("no-key", container(env=[missing])),
        pod("no-map", container(envFrom=[{"configMapRef": {"name": "none"}}])),
    )
    scene.until_over("speaks")
    for name in ("no-key", "no-map"):
        scene.wait(name, lambda each: bool(waiting(each)), "waits")
    scene.pause(SEES_S)
    scene.delete("speaks", "no-key", "no-map")


def sub_paths(scene: Scene) -> None:
    """Parts of volumes are mounted: one that is named by a variable, and one that is not."""
    volumes = [{"name": "v", "emptyDir": {}}, {"name": "c", "configMap": {"name": "config"}}]
    named = {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}

    def mounting(name: str, volume: str, **fields: str) -> Json:
        mount = {"name": volume, "mountPath": "/v", **fields}
        return pod(name, container(env=[named], volumeMounts=[mount]), volumes=volumes)

    scene.create(config_map("config", a="1"))
    scene.create(
        mounting("part", "v", subPath="a/b"),
        mounting("key", "c", subPath="a"),
        mounting("own", "v", subPathExpr="$(WHO)"),
        mounting("nobodys", "v", subPathExpr="$(NONE)"),
    )
    scene.until_running("part", "key", "own")
    scene.wait("nobodys", lambda each: bool(waiting(each)), "waits")
    scene.pause(SEES_S)
    scene.delete("part", "key", "own", "nobodys")


def last_words(scene: Scene) -> None:
    """Containers end with messages: too long, in another place, none, of the log."""
    log = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    many = f"echo {'x' * 5000} > {LOG}; exit 1"
    scene.create(
        pod("long", container(script=many), restartPolicy="Never"),
        pod(
            "elsewhere",
            container(script="echo here > /tmp/last; exit 3", terminationMessagePath="/tmp/last"),
            restartPolicy="Never",
        ),
        pod("both", container(script=f"echo file > {LOG}; exit 1", **log), restartPolicy="Never"),
        pod("well", container(script="echo fine", **log), restartPolicy="Never"),
        pod("silent", container(script="exit 2", **log), restartPolicy="Never"),
    )
    names = ("long", "elsewhere", "both", "well", "silent")
    for name in names:
        scene.until_over(name)
    scene.pause()
    scene.delete(*names)


def users(scene: Scene) -> None:
    """Who may not be root, and who is."""

    def as_user(name: str, *, of_pod: Json | None = None, **context: object) -> Json:
        made = container(securityContext=context) if context else container()
        return pod(name, made, **({"securityContext": of_pod} if of_pod else {}))

    made = (
        as_user("image", runAsNonRoot=True),
        as_user("zero", runAsNonRoot=True, runAsUser=0),
        as_user("somebody", runAsNonRoot=True, runAsUser=1000, runAsGroup=2000),
        as_user(
            "grouped",
            of_pod={"runAsUser": 1000, "fsGroup": 3000, "supplementalGroups": [4000]},
        ),
    )
    scene.create(*made)
    scene.until_running("somebody", "grouped")
    scene.wait("zero", lambda each: bool(waiting(each)), "waits")
    scene.pause(SEES_S)
    scene.delete(*(each["metadata"]["name"] for each in made))


def sysctls(scene: Scene) -> None:
    """Kernel parameters that any pod may set, and one that none may."""

    def setting(name: str, parameter: str) -> Json:
        wanted = {"sysctls": [{"name": parameter, "value": "1024"}]}
        return pod(name, securityContext=wanted)

    scene.create(
        setting("safe", "net.ipv4.ip_unprivileged_port_start"),
        setting("unsafe", "net.core.somaxconn"),
    )
    scene.until_running("safe")
    scene.until_over("unsafe")
    scene.pause()
    scene.delete("safe", "unsafe")


def classes(scene: Scene) -> None:
    """Pods with a priority, with the overhead of a RuntimeClass, and with an unknown handler."""
    name = "{namespace}-"
    scene.create(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name + "high"},
            "value": 1000,
        },
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": name + "heavy"},
            "handler": "runc",
            "overhead": {"podFixed": {"cpu": "50m", "memory": "16Mi"}},
        },
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": name + "strange"},
            "handler": "nobodys",
        },
    )
    scene.pause()
    asked = resources("100m", "32Mi")
    scene.create(
        pod("high", priorityClassName=name + "high"),
        pod("heavy", container(resources=asked), runtimeClassName=name + "heavy"),
        pod("strange", runtimeClassName=name + "strange"),
    )
    scene.until_running("high", "heavy")
    scene.pause(SEES_S + 8)
    scene.delete("high", "heavy", "strange")


def image_volumes(scene: Scene) -> None:
    """Images are mounted as volumes: pulled, there, and not to be found."""

    def mounting(name: str, image: str, policy: str, **fields: str) -> Json:
        volume = {"name": "i", "image": {"reference": image, "pullPolicy": policy}}
        mount = {"name": "i", "mountPath": "/i", **fields}
        return pod(name, container(volumeMounts=[mount]), volumes=[volume])

    scene.create(
        mounting("pulled", "registry.k8s.io/oracle/artifact:1", "IfNotPresent"),
        mounting("absent", "registry.k8s.io/oracle/nowhere:1", "Never"),
    )
    scene.until_running("pulled")
    scene.wait("absent", lambda each: bool(waiting(each)), "waits")
    scene.pause(SEES_S)
    scene.delete("pulled", "absent")


def host_paths(scene: Scene) -> None:
    """Places of the host of each type: those that are there, that are made, that are missing."""

    def mounting(name: str, path: str, kind: str) -> Json:
        volume = {"name": "h", "hostPath": {"path": path, "type": kind}}
        mount = {"name": "h", "mountPath": "/h"}
        return pod(name, container(volumeMounts=[mount]), volumes=[volume])

    there = (
        mounting("directory", "/etc", "Directory"),
        mounting("file", "/etc/hostname", "File"),
        mounting("device", "/dev/null", "CharDevice"),
        mounting("made", "/var/lib/oracle/{namespace}", "DirectoryOrCreate"),
        mounting("made-file", "/var/lib/oracle-{namespace}", "FileOrCreate"),
    )
    not_there = (
        mounting("no-directory", "/etc/hostname", "Directory"),
        mounting("no-file", "/etc", "File"),
        mounting("no-socket", "/etc", "Socket"),
        mounting("no-device", "/etc", "BlockDevice"),
        mounting("nothing", "/nowhere", "Directory"),
    )
    scene.create(*there, *not_there)
    for each in there:
        scene.until_running(each["metadata"]["name"])
    scene.pause(SEES_S)
    scene.delete(*(each["metadata"]["name"] for each in (*there, *not_there)))


def named_ports(scene: Scene) -> None:
    """Probes of ports by their names, of each kind, and of a name that nobody has."""
    ports = [
        {"name": "web", "containerPort": 8080},
        {"name": "rpc", "containerPort": 9090},
    ]
    web = probe({"httpGet": {"port": "web", "path": "/"}}, timeoutSeconds=1)
    tcp = probe({"tcpSocket": {"port": "rpc"}}, timeoutSeconds=1)
    nobodys = probe({"httpGet": {"port": "none", "path": "/"}}, failureThreshold=2)
    service = {**grpc_probe(timeoutSeconds=1), "grpc": {"port": 9090, "service": "shop"}}
    headers = [{"name": "X-Probe", "value": "1"}]
    detailed = probe({"httpGet": {"port": 8080, "path": "/?a=1", "httpHeaders": headers}})
    scene.create(
        pod("by-name", container(ports=ports, readinessProbe=web, livenessProbe=tcp)),
        pod("service", container(ports=ports, readinessProbe=service, startupProbe=detailed)),
        pod("nobodys", container(ports=ports, readinessProbe=nobodys)),
    )
    scene.until_ready("by-name")
    scene.until_ready("service")
    scene.until_running("nobodys")
    scene.pause(SEES_S)
    scene.delete("by-name", "service", "nobodys")


def own_grace(scene: Scene) -> None:
    """A probe that fails gives its container less time than the pod would."""
    script = "trap '' TERM; touch /tmp/ok; sleep 3; rm /tmp/ok; sleep 900"
    live = exec_probe("cat /tmp/ok", failureThreshold=1, terminationGracePeriodSeconds=4)
    up = exec_probe("false", failureThreshold=2, terminationGracePeriodSeconds=2)
    scene.create(
        pod("lives", container(script=script, livenessProbe=live)),
        pod("starts", container(script="sleep 900", startupProbe=up), restartPolicy="Never"),
    )
    scene.wait("lives", lambda each: restarts(each) >= 1, "restarts", limit_s=60)
    scene.until_over("starts")
    scene.pause(1)  # before the next probe fails
    scene.delete("lives", "starts")


def gating_sidecars(scene: Scene) -> None:
    """What comes after a sidecar waits until its startup probe passes, or its hook is over."""
    late = container(
        "late",
        "sleep 5; touch /tmp/up; sleep 900",
        startupProbe=exec_probe("cat /tmp/up", failureThreshold=20),
        **ALWAYS,
    )
    hook = {"postStart": {"exec": {"command": ["sh", "-c", "sleep 3"]}}}
    hooked = container("hooked", "sleep 900", lifecycle=hook, **ALWAYS)
    failing = container(
        "failing", "sleep 900", startupProbe=exec_probe("false", failureThreshold=2), **ALWAYS
    )
    unready = container(
        "unready",
        "sleep 900",
        readinessProbe=exec_probe("[ -e /tmp/ready ]"),
        **ALWAYS,
    )
    scene.create(
        pod("waits", initContainers=[late, hooked, container("then", "sleep 1")]),
        pod("never", initContainers=[failing]),
        pod("unready", initContainers=[unready]),
    )
    scene.until_ready("waits")
    scene.until_running("unready")
    scene.wait("never", lambda each: restarts(each, "failing") >= 1, "restarts", limit_s=60)
    scene.pause()
    scene.delete("waits", "never", "unready")


def all_restart(scene: Scene) -> None:
    """One exit code restarts all containers of a pod, init containers first."""
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
    made = container(
        "ruled",
        "sleep 2; [ -e /d/x ] && sleep 900; touch /d/x; exit 42",
        restartPolicy="Never",
        restartPolicyRules=[rule],
        volumeMounts=[{"name": "d", "mountPath": "/d"}],
    )
    volumes = [{"name": "d", "emptyDir": {}}]
    inits = [container("first", "exit 0"), container("side", "sleep 900", **ALWAYS)]
    other = container("other", "sleep 900")
    scene.create(
        pod("all", made, other, initContainers=inits, volumes=volumes, restartPolicy="Never")
    )
    scene.wait(
        "all",
        lambda each: restarts(each, "other") >= 1 and is_ready(each),
        "restarts",
        limit_s=60,
    )
    scene.pause()
    scene.delete("all")
