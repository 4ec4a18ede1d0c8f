"""Scenes of nodes that are configured otherwise: see halves.py."""

from oracle.normalisation import Json
from oracle.objects_of_scenes import container, pod, resources
from oracle.scene import Scene

RBAC = "rbac.authorization.k8s.io"
DENIED_S = 31.0
"""A kubelet keeps what the API server denied for 30 s, what it granted for longer."""
HOSTS = "Default"
"""Each sync of other pods tells the Node that it knows no name server of the cluster."""
SEES_S = 8.0
"""A sync that failed is tried again after 10 to 15 s, what it reports comes at once."""


def no_cluster_dns(scene: Scene) -> None:
    """Pods want the cluster's name server, which the kubelet does not know."""
    scene.create(
        pod("wants"),
        pod("wants-not", dnsPolicy="Default"),
        pod("own", dnsPolicy="None", dnsConfig={"nameservers": ["203.0.113.1"]}),
    )
    scene.until_running("wants", "wants-not", "own")
    scene.pause(SEES_S)
    scene.delete("wants", "wants-not", "own")


def lone_cpus(scene: Scene) -> None:
    """Guaranteed pods of whole CPUs have them alone, until none is left."""
    one = resources("1", "32Mi")
    scene.create(
        pod("alone", container(resources=one), dnsPolicy=HOSTS),
        pod("shares", container(resources=resources("100m", "32Mi")), dnsPolicy=HOSTS),
    )
    scene.until_running("alone", "shares")
    scene.pause()
    scene.create(pod("no-more", container(resources=one), dnsPolicy=HOSTS))
    scene.until_over("no-more")
    scene.pause()
    scene.delete("alone", "shares", "no-more")


def lacking_runtime(scene: Scene) -> None:
    """Pods ask for what the runtime cannot do."""
    volumes = [{"name": "v", "emptyDir": {}}]
    mount = {"name": "v", "mountPath": "/v", "readOnly": True, "recursiveReadOnly": "Enabled"}
    possible = {**mount, "recursiveReadOnly": "IfPossible"}
    groups = {"supplementalGroups": [4000], "supplementalGroupsPolicy": "Strict"}
    scene.create(
        pod("users", hostUsers=False, dnsPolicy=HOSTS),
        pod("mounts", container(volumeMounts=[mount]), volumes=volumes, dnsPolicy=HOSTS),
        pod("if-possible", container(volumeMounts=[possible]), volumes=volumes, dnsPolicy=HOSTS),
        pod("groups", securityContext=groups, dnsPolicy=HOSTS),
    )
    scene.until_running("if-possible")
    scene.until_over("groups")
    scene.pause(SEES_S + 8)
    scene.delete("users", "mounts", "if-possible", "groups")


def resolver(scene: Scene) -> None:
    """The machine has more name servers and search domains than a pod can have."""
    none = {"nameservers": ["203.0.113.1"], "searches": ["own.example"]}
    scene.create(
        pod("ours"),
        pod("machines", dnsPolicy="Default"),
        pod("hosts", hostNetwork=True),
        pod("own", dnsPolicy="None", dnsConfig=none),
        pod("both", dnsPolicy="Default", dnsConfig=none),
    )
    names = ("ours", "machines", "hosts", "own", "both")
    for name in names:
        scene.until_running(name)
    scene.pause()
    scene.delete(*names)


def asked(scene: Scene) -> None:
    """Clients ask the kubelets, which ask the API server who they are and what they may."""
    rule = {"apiGroups": [""], "resources": ["nodes/metrics", "nodes/pods"], "verbs": ["get"]}
    role = {"kind": "ClusterRole", "name": "{namespace}", "apiGroup": RBAC}
    scene.create(
        {**made("ClusterRole", "{namespace}"), "rules": [rule]},
        {
            **made("ClusterRoleBinding", "{namespace}"),
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", "name": "client", "namespace": "{namespace}"}],
        },
        *(
            {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": name}}
            for name in ("client", "other")
        ),
    )
    scene.pause()  # the API server learns of roles by a watch
    client, other = (
        {side: scene.token_of(side, name) for side in scene.namespaces}
        for name in ("client", "other")
    )
    scene.ask_kubelets("/metrics", 200, client)
    scene.ask_kubelets("/metrics/cadvisor", 200, client)
    scene.ask_kubelets("/pods", 200, client)
    scene.ask_kubelets("/stats/summary", 403, client)
    scene.ask_kubelets("/configz", 403, client)
    scene.ask_kubelets("/run/none/none/none", 403, client, "POST")
    scene.ask_kubelets("/pods", 403, other)
    scene.ask_kubelets("/healthz", 403, other)
    scene.ask_kubelets("/logs/", 403, other)
    scene.ask_kubelets("/pods", 403)
    scene.ask_kubelets("/pods", 401, dict.fromkeys(scene.namespaces, "nobody"))
    scene.pause(DENIED_S)
    scene.ask_kubelets("/metrics", 200, client)
    scene.ask_kubelets("/pods", 403, other)
    scene.ask_kubelets("/pods", 401, dict.fromkeys(scene.namespaces, "nobody"))
    scene.delete("{namespace}", plural="clusterrolebindings")
    scene.delete("{namespace}", plural="clusterroles")


def made(kind: str, name: str) -> Json:
    return {"kind": kind, "apiVersion": f"{RBAC}/v1", "metadata": {"name": name}}
