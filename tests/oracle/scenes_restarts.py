"""Scenes that take minutes, and those in which a kubelet or the API server is killed."""

from oracle.objects_of_scenes import ALWAYS, config_map, container, exec_probe, pod
from oracle.scene import Scene, is_ready, restarts

LABEL = "oracle/zone"
OLDER_S = 12.0
"""What has run for 10 s before a kubelet starts is as ready as it was: prober_manager.go."""
LOOKS_S = 13.0
"""Every 10 s a kubelet looks at all statuses: status_manager.go, Start."""
APART_S = 0.5
"""Pods that start at once make an API server slow, so that one node tells two changes as one."""
IDLE_S = 120.0
LADDER_S = 300.0
"""Back-offs of 10, 20, 40, 80 and 160 s."""
WITHOUT_S = 25.0
"""Two looks of a node at itself; the pods of a Node that is gone are deleted after 40 s."""
BACKS_OFF_S = 40.0
"""Reflectors that find no server try again after 30 s at most."""


def kubelet_restarts(scene: Scene) -> None:
    """The kubelets are killed and come back; their pods run on and are admitted anew.

    Meanwhile one pod's label of the Node has gone, one has ended, and one is being stopped.
    """
    probed = container(script="sleep 900", readinessProbe=exec_probe("true"))
    slow = container(
        script="sleep 900",
        startupProbe=exec_probe("true"),
        livenessProbe=exec_probe("true"),
        readinessProbe=exec_probe("true"),
    )
    once = container(
        script="[ -e /v/x ] && sleep 900; touch /v/x; exit 3",
        volumeMounts=[{"name": "v", "mountPath": "/v"}],
    )
    volumes = [{"name": "v", "configMap": {"name": "config"}}]
    mounts = [{"name": "v", "mountPath": "/v"}]
    made = (
        pod("stays"),
        pod("probed", probed),
        pod("three-probes", slow),
        pod("mounted", container(volumeMounts=mounts), volumes=volumes),
        pod("crashed", once, volumes=[{"name": "v", "emptyDir": {}}]),
        pod("sidecar", initContainers=[container("i", "true"), container("s", **ALWAYS)]),
        pod("done", container(script="true"), restartPolicy="Never"),
        pod("ends", container(script="sleep 45; exit 3"), restartPolicy="Never"),
        pod("selected", nodeSelector={LABEL: "here"}),
        pod("stops", notes={"stop-time": "20s"}, terminationGracePeriodSeconds=45),
    )
    scene.patch_node({"metadata": {"labels": {LABEL: "here"}}})
    scene.create(config_map("config", a="1"))
    for each in made:
        scene.create(each)
        scene.pause(APART_S)
    scene.until_over("done")
    scene.until_running("stays", "ends", "selected", "mounted", "sidecar", "stops")
    scene.wait("crashed", lambda each: restarts(each) == 1 and is_ready(each), "has restarted")
    for name in ("probed", "three-probes"):
        scene.until_ready(name)
    scene.pause(OLDER_S)
    scene.create(pod("young", probed))
    scene.until_ready("young")
    scene.pause()
    scene.patch_node({"metadata": {"labels": {LABEL: None}}})
    scene.ask_to_delete("stops")
    scene.pause()
    scene.restart_kubelets()
    scene.until_over("selected", "ends")
    scene.until_ready("young")
    scene.pause(LOOKS_S)
    scene.until(lambda side: scene.get(side, "pods", "stops") is None, "stops is gone")
    scene.live(pod("later"))
    scene.delete(*(each["metadata"]["name"] for each in made[:-1]), "young")


def apiserver_restarts(scene: Scene) -> None:
    """The API server is killed and comes back; a container ends meanwhile."""
    scene.create(
        pod("stays"),
        pod("ends", container(script="sleep 8"), restartPolicy="Never"),
        pod("probed", container(script="sleep 900", readinessProbe=exec_probe("true"))),
    )
    scene.until_running("stays", "ends", "probed")
    scene.pause()
    scene.restart_apiserver()
    scene.until_over("ends", limit_s=120)
    scene.pause(BACKS_OFF_S)
    scene.live(pod("later"))
    scene.delete("stays", "ends", "probed")


def idle(scene: Scene) -> None:
    """Nothing happens for two minutes: Leases and statuses of the Nodes, and nothing of pods."""
    scene.create(
        pod("idle"), pod("probed", container(script="sleep 900", readinessProbe=exec_probe("true")))
    )
    scene.until_running("idle")
    scene.until_ready("probed")
    scene.pause(IDLE_S)
    scene.delete("idle", "probed")


def back_off_ladders(scene: Scene) -> None:
    """Containers that end at once or soon, and a pull that fails, for five minutes."""
    note = {"pull-error": "NotFound"}
    scene.create(
        pod("crashes", container(script="exit 3")),
        pod("ends", container(script="sleep 2")),
        pod("initialises", initContainers=[container("i", "exit 1")]),
        pod("pulls", container(image="registry.k8s.io/oracle/ladder:1"), notes=note),
    )
    scene.pause(LADDER_S)
    scene.delete("crashes", "ends", "initialises", "pulls")


def deleted_node(scene: Scene) -> None:
    """The Nodes are deleted: kubelets that run do not make them again, kubelets that start do."""
    scene.create(pod("orphan"))
    scene.until_running("orphan")
    scene.pause()
    scene.delete_nodes()
    scene.pause(WITHOUT_S)
    scene.restart_kubelets()
    scene.until(scene.has_ready_node, "is Ready again")
    scene.pause(LOOKS_S)
    scene.live(pod("later"))
    scene.delete("orphan")


def restarts_midway(scene: Scene) -> None:
    """The kubelets come back while a pod backs off, pulls, waits, initialises, or runs a hook."""

    def hook(script: str) -> dict[str, object]:
        return {"exec": {"command": ["sh", "-c", script]}}

    volumes = [{"name": "v", "configMap": {"name": "late"}}]
    made = (
        pod("backs-off", container(script="exit 3")),
        pod("initialises", initContainers=[container("i", "sleep 30")]),
        pod("waits", volumes=volumes),
        pod("starts", container(script="sleep 900", lifecycle={"postStart": hook("sleep 20")})),
        pod("stops", container(script="sleep 900", lifecycle={"preStop": hook("sleep 15")})),
        pod(
            "pulls",
            container(image="registry.k8s.io/oracle/midway:1", imagePullPolicy="Always"),
            notes={"pull-time": "25s"},
        ),
    )
    made[4]["spec"]["terminationGracePeriodSeconds"] = 30
    for each in made:
        scene.create(each)
        scene.pause(APART_S)
    scene.wait("backs-off", lambda each: restarts(each) >= 2, "restarts twice")
    scene.until_running("stops")
    scene.ask_to_delete("stops")
    scene.pause(3)
    scene.restart_kubelets()
    scene.pause(10)
    scene.create(config_map("late", a="1"))
    scene.wait("backs-off", lambda each: restarts(each) >= 4, "restarts again")
    scene.pause(1)
    scene.delete("backs-off")  # before it restarts once more
    for name in ("initialises", "starts", "pulls", "waits"):
        scene.until_running(name, limit_s=100)
    scene.until(lambda side: scene.get(side, "pods", "stops") is None, "stops is gone")
    scene.pause(LOOKS_S)
    scene.delete("initialises", "starts", "pulls", "waits")
