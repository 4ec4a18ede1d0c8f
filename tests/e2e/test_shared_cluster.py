"""The safety rules of design 3.5: fleet loads only what was named, and harms no shared cluster."""

import os
import pty
import subprocess
from pathlib import Path

import pytest
import yaml
from support import markdown
from support.guard import marked_processes

from e2e.e2e_world import FLEET, FOREIGN_NODE, Json, World, condition, eventually, workload
from e2e.lateness import assert_done
from fleet.cluster.daemonsets import EXCLUDE_FROM_BALANCERS, FAKE_TAINT
from fleet.cluster.ownership import RUN_LABEL

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("foreign_node"),
]

ZONE = "topology.kubernetes.io/zone"
TAINT: Json = {"key": FAKE_TAINT.key, "value": FAKE_TAINT.value, "effect": FAKE_TAINT.effect}
BY_NAME: Json = {"key": FAKE_TAINT.key, "operator": "Exists", "effect": FAKE_TAINT.effect}
WILDCARD: Json = {"operator": "Exists"}


@pytest.fixture
def named(world: World, tmp_path: Path) -> Path:
    """Write a kubeconfig whose context has a name of its own."""
    document = yaml.safe_load(world.info.kubeconfig.read_text())
    document["contexts"][0]["name"] = document["current-context"] = "prod"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def assert_untouched(world: World) -> None:
    assert not world.items("nodes", "-l", RUN_LABEL)
    assert not world.items("leases", "-l", RUN_LABEL)


def test_kubeconfig_in_the_environment_selects_nothing(world: World, named: Path) -> None:
    """With $KUBECONFIG alone fleet starts a control plane of its own."""
    out = named.with_name("out")
    spawn = ("spawn", "--nodes=2", "--until-ready", f"--kubeconfig-out={out}")
    state = str(named.parent / "state")
    done = world.fleet(*spawn, KUBECONFIG=str(named), XDG_STATE_HOME=state)
    assert_done(done.returncode, done.stdout, done.stderr)
    assert "starting a local control plane" in done.stderr
    assert world.info.url not in out.read_text()
    assert_untouched(world)
    nodes = {"default": world.kubectl("get", "nodes", "-o", "name").split()}
    assert nodes == {"default": [f"node/{FOREIGN_NODE}"]}
    # `fleet clean` neither: it has no cluster to look at.
    clean = world.fleet("clean", "--all", "--yes", KUBECONFIG=str(named), XDG_STATE_HOME=state)
    assert clean.returncode == 2
    assert "name a cluster with --kubeconfig, --context or --in-cluster" in clean.stderr


def credentials_in(directory: Path, secret: str) -> list[Path]:
    files = [each for each in directory.rglob("*") if each.is_file()]
    assert files
    return [each for each in files if secret.encode() in each.read_bytes()]


@pytest.mark.parametrize("interrupts", [1, 2])
def test_a_credential_is_in_no_file_that_stays(
    world: World, tmp_path: Path, interrupts: int
) -> None:
    """The command's kubeconfig is a temporary file, which goes with the run, however it ends."""
    kubeconfig = world.info.token_kubeconfig
    [user] = yaml.safe_load(kubeconfig.read_text())["users"]
    told, prefix = tmp_path / "told", f"secret{interrupts}"
    script = f'stat -c "%a %n" "$KUBECONFIG" > {told}.part; mv {told}.part {told}; exec sleep 600'
    named = (f"--kubeconfig={kubeconfig}", "--confirm-cluster=fleet", "--processes=2")
    with world.spawn(prefix, 4, *named, "--", "sh", "-c", script) as run:
        eventually(told.exists, "the command runs")
        mode, name = told.read_text().split()
        assert (mode, credentials_in(run.directory, user["user"]["token"])) == ("600", [])
        assert user["user"]["token"] in Path(name).read_text()
        assert run.directory.absolute() not in Path(name).parents
        for each in marked_processes(str(world.root)):
            assert user["user"]["token"] not in " ".join(each.cmdline())
        if interrupts == 2:
            with world.server_stopped():  # or it may be over before the second one comes
                run.interrupt()
                run.until("draining")
                run.interrupt_again()
                run.wait()
        else:
            run.interrupt()
            run.wait()
        assert (run.process.returncode == 130) == (interrupts == 2)
    assert not Path(name).exists()
    assert not credentials_in(run.directory, user["user"]["token"])
    if interrupts == 2:
        world.fleet("clean", f"--run={run.log.split('--run ')[-1].strip()}")
    world.assert_nothing_left(prefix)


def test_a_kubeconfig_of_the_user_s_is_not_overwritten(world: World, named: Path) -> None:
    before = named.read_text()
    spawn = ("spawn", "--nodes=2", "--name-prefix=out", "--until-ready", "--confirm-cluster=prod")
    absent = named.parent / "absent" / "kubeconfig"
    for out, said in ((named, "this run reads its credentials there"), (absent, "no folder")):
        done = world.fleet(*spawn, f"--kubeconfig={named}", f"--kubeconfig-out={out}")
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert said in done.stderr
    other = named.with_name("other")
    other.write_text(before)
    done = world.fleet(*spawn, f"--kubeconfig={named}", f"--kubeconfig-out={other}")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "fleet did not write this file" in done.stderr
    assert named.read_text() == other.read_text() == before
    assert_untouched(world)


def test_a_standing_control_plane_is_used_if_nothing_is_named(world: World) -> None:
    done = world.fleet("spawn", "--nodes=2", "--name-prefix=attach", "--until-ready")
    assert "using the local control plane in" in done.stderr
    # It is shared like any other cluster that has a node which is not fleet's.
    assert done.returncode == 2
    assert_untouched(world)


def test_a_shared_cluster_must_be_confirmed_by_its_name(world: World, named: Path) -> None:
    """A command that runs then gets a kubeconfig with the confirmed context."""
    spawn = ("spawn", "--nodes=7", "--name-prefix=guest", f"--kubeconfig={named}")
    world.apply(daemon_set("agent"))
    try:
        refused = world.fleet(*spawn)
        wrong = world.fleet(*spawn, "--confirm-cluster=staging")
    finally:
        world.kubectl("delete", "daemonset", "agent")
    assert refused.returncode == 2
    assert "confirm with --confirm-cluster prod" in refused.stderr
    assert wrong.returncode == 2
    assert "--confirm-cluster staging: this is prod" in wrong.stderr
    assert_untouched(world)
    notice = " ".join(refused.stderr.split())
    for words in (
        "SHARED cluster",
        "context prod",
        f"server {world.info.url} ({world.info.server_version})",
        "has 1 node of its own",
        "will get at most 7 nodes guest-*",
        "1 DaemonSet will land on them, which makes 7 more pods",
        "default/agent: 7 pods; they will not become Ready",
        "Pod CIDRs at risk: each node takes a /24",
    ):
        assert words in notice, words
    command = ("sh", "-c", 'grep current-context "$KUBECONFIG"; stat -c %a "$KUBECONFIG"')
    done = world.fleet(*spawn, "--confirm-cluster=prod", "--", *command)
    assert_done(done.returncode, done.stdout, done.stderr)
    assert "SHARED cluster" in done.stderr
    assert "current-context: prod" in done.stdout
    assert "600" in done.stdout
    world.assert_nothing_left("guest")
    assert FOREIGN_NODE in world.kubectl("get", "nodes", "-o", "name")


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("", 2)])
def test_a_person_is_asked(world: World, named: Path, answer: str, code: int) -> None:
    spawn = ("spawn", "--nodes=1", "--name-prefix=asked", f"--kubeconfig={named}", "--until-ready")
    ours, terminal = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        done = world.fleet(*spawn, stdin=terminal)
    finally:
        os.close(ours)
        os.close(terminal)
    assert_done(done.returncode, done.stdout, done.stderr, expected=code)
    assert "will get    at most 1 nodes" in done.stderr
    assert "[y/N]" in done.stderr
    assert ("nothing was created" in done.stderr) is bool(code)
    world.assert_nothing_left("asked")


def test_guests_repel_what_does_not_know_them(world: World, named: Path) -> None:
    """Taint, label, no zones; a pod that tolerates everything runs there, but is never Ready."""
    confirmed = (f"--kubeconfig={named}", "--confirm-cluster=prod")
    with world.spawn("guest", 3, *confirmed) as run:
        run.until_ready()
        for node in world.nodes("guest").values():
            labels = node["metadata"]["labels"]
            assert TAINT in node["spec"]["taints"]
            assert labels[EXCLUDE_FROM_BALANCERS] == ""
            assert ZONE not in labels
            assert "failure-domain.beta.kubernetes.io/zone" not in labels
        world.apply(
            workload("Deployment", "ignorant", 2),
            workload("Deployment", "wildcard", 2, tolerations=[WILDCARD]),
            workload("Deployment", "knowing", 2, tolerations=[BY_NAME]),
            service("wildcard"),
            service("knowing"),
        )
        try:
            world.kubectl("rollout", "status", "deployment/knowing", "--timeout=120s")
            started = "all that may be scheduled run"
            eventually(lambda: phases(world, "wildcard") == {"Running"}, started)
            assert phases(world, "ignorant") == {"Pending"}
            assert not any(pod["spec"].get("nodeName") for pod in world.pods("ignorant"))
            assert not world.ready_pods("wildcard")
            for pod in world.pods("wildcard"):
                [ready] = [c for c in pod["status"]["conditions"] if c["type"] == "Ready"]
                assert FAKE_TAINT.key in ready["message"]
                assert condition(pod, "ContainersReady") == "False"
            eventually(lambda: endpoints(world, "knowing") == [True, True], "endpoints")
            assert True not in endpoints(world, "wildcard")
        finally:
            deployments = ("deployment/ignorant", "deployment/wildcard", "deployment/knowing")
            services = ("service/wildcard", "service/knowing")
            world.kubectl("delete", "--wait=false", *deployments, *services)
        run.end_well_or_late()
    world.assert_nothing_left("guest")


def daemon_set(name: str, affinity: Json | None = None) -> Json:
    """Return a DaemonSet that tolerates everything."""
    spec = {"affinity": affinity} if affinity else {}
    found = workload("DaemonSet", name, 0, tolerations=[WILDCARD], **spec)
    del found["spec"]["replicas"]
    return found


def test_daemon_sets_land_unless_their_owners_exclude_fake_nodes(world: World, named: Path) -> None:
    """The affinity is the one that docs/explain/safety.md shows."""
    [shown] = markdown.blocks(markdown.ROOT / "docs" / "explain" / "safety.md")
    confirmed = (f"--kubeconfig={named}", "--confirm-cluster=prod")
    with world.spawn("landed", 2, *confirmed) as run:
        run.until_ready()
        fake = set(world.nodes("landed"))
        world.apply(
            daemon_set("everywhere"),
            daemon_set("elsewhere", yaml.safe_load(shown.text)["affinity"]),
        )
        try:
            everywhere = fake | {FOREIGN_NODE}
            eventually(lambda: hosts(world, "everywhere") == everywhere, "pods on all nodes")
            eventually(lambda: desired(world, "elsewhere"), "the controller has counted")
            assert desired(world, "elsewhere") == 1
            eventually(lambda: hosts(world, "elsewhere"), "its pod")
            assert hosts(world, "elsewhere") == {FOREIGN_NODE}
        finally:
            world.kubectl("delete", "daemonset", "everywhere", "elsewhere", "--wait=false")
        run.end_well_or_late()
    world.assert_nothing_left("landed")


def desired(world: World, name: str) -> int:
    return int(world.get("daemonset", name)["status"]["desiredNumberScheduled"])


def hosts(world: World, app: str) -> set[str]:
    """Return the nodes that the pods of a DaemonSet are for, by the affinity that each is given."""
    terms = [
        pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        for pod in world.pods(app)
    ]
    return {name for term in terms for name in _names(term)}


def _names(affinity: Json) -> list[str]:
    [term] = affinity["nodeSelectorTerms"]
    found: list[str] = term["matchFields"][0]["values"]
    return found


def service(app: str) -> Json:
    spec = {"selector": {"app": app}, "ports": [{"port": 80}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": app}, "spec": spec}


def phases(world: World, app: str) -> set[str]:
    return {pod["status"]["phase"] for pod in world.pods(app)}


def endpoints(world: World, name: str) -> list[bool]:
    """Return for each address of a Service whether it would get traffic."""
    slices = world.items("endpointslices", "-l", f"kubernetes.io/service-name={name}")
    return [end["conditions"]["ready"] for each in slices for end in each["endpoints"] or ()]


def test_a_dedicated_cluster_may_drop_the_taint(world: World, named: Path) -> None:
    confirmed = (f"--kubeconfig={named}", "--confirm-cluster=prod")
    with world.spawn("tame", 2, *confirmed, "--no-taint", "--zone-labels", "--keep") as run:
        assert run.process.poll() is None
        run.until_ready()
        assert "ANY pod of this cluster may be scheduled" in run.log
        for node in world.nodes("tame").values():
            assert not node["spec"].get("taints")
            assert ZONE in node["metadata"]["labels"]
            assert node["metadata"]["labels"][EXCLUDE_FROM_BALANCERS] == ""
        world.apply(workload("Deployment", "any", 2))
        try:
            world.kubectl("rollout", "status", "deployment/any", "--timeout=120s")
        finally:
            world.kubectl("delete", "deployment", "any", "--wait=false")
        run.end_well_or_late()
    uids = {node["metadata"]["uid"] for node in world.nodes("tame").values()}
    # One that takes them over and is not told so makes guests of them.
    with world.spawn("tame", 2, *confirmed) as run:
        run.until_ready()
        for node in world.nodes("tame").values():
            assert node["metadata"]["uid"] in uids
            assert TAINT in node["spec"]["taints"]
        run.end_well_or_late()
    world.assert_nothing_left("tame")


def test_help_needs_no_cluster(world: World) -> None:
    """The quickest check that nothing is contacted by looking around."""
    before = {each.pid for each in marked_processes(str(world.root))}
    for arguments in (("--help",), ("spawn", "--help"), ("profiles", "list"), ("--version",)):
        done = subprocess.run((*FLEET, *arguments), capture_output=True, check=True, timeout=120)
        assert done.stdout
    assert {each.pid for each in marked_processes(str(world.root))} <= before
