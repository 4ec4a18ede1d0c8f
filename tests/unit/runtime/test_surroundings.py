"""Containers whose commands look at their pod and leave files in its volumes."""

import pytest
from world.pod_world import container

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.pods import Pod, PodSpec, PodUid, VolumeSpec
from fleet.k8s.scripts import EnvRef, MountSpec, ScriptSpec, Variable
from fleet.profile.pod_behavior import DEFAULT_BEHAVIOR
from fleet.runtime.command import command_of, run_around
from fleet.runtime.containers import NEVER
from fleet.runtime.runtime import Runtime
from fleet.runtime.surroundings import NoSources, hostname

ONCE = "[ -f /data/$NAME ] && exit 0; touch /data/$NAME; sleep 2; exit 4"
SCRIPT = ScriptSpec(
    (Variable("NAME", source=EnvRef("Field", "metadata.labels['name']")),),
    (MountSpec("/data", "d", ""),),
)


def pod(uid: str, volume: VolumeSpec) -> Pod:
    spec = container("c", "sh", "-c", ONCE, script=SCRIPT)
    return Pod(
        namespace="n",
        name=uid,
        uid=PodUid(uid),
        labels=(("name", "x"),),
        spec=PodSpec(containers=(spec,), volumes=(volume,)),
    )


def codes(runtime: Runtime, of: Pod, runs: int) -> list[int]:
    """Let the container of a pod run again and again, and return how it ended."""
    runtime.create_sandbox(of)
    found = []
    for attempt in range(runs):
        now_ns = attempt * 100 * NS_PER_S
        container = runtime.start_container(of, of.spec.containers[0], DEFAULT_BEHAVIOR, now_ns, 0)
        assert container.exit_ns != NEVER
        assert container.exit_ns - now_ns == (2 * NS_PER_S if container.exit_code else 0)
        found.append(container.exit_code)
        runtime.advance(of.uid, container.exit_ns, 0)
    runtime.remove(of.uid)
    return found


def test_a_file_in_an_empty_dir_counts_the_runs_of_a_pod() -> None:
    runtime = Runtime(1, "192.0.2.1", "10.0.0.0/24", Draws(1))
    volume = VolumeSpec("d", "emptyDir")
    assert codes(runtime, pod("a", volume), 3) == [4, 0, 0]
    assert codes(runtime, pod("b", volume), 2) == [4, 0]


def test_a_file_on_the_host_or_a_claim_counts_the_pods_of_a_node() -> None:
    runtime = Runtime(1, "192.0.2.1", "10.0.0.0/24", Draws(1))
    for volume in (
        VolumeSpec("d", "hostPath", host_path="/tmp/x"),
        VolumeSpec("d", "persistentVolumeClaim", claim="data"),
    ):
        assert codes(runtime, pod("a", volume), 1) == [4]
        assert codes(runtime, pod("b", volume), 1) == [0]


def test_a_volume_that_shows_things_takes_no_file() -> None:
    runtime = Runtime(1, "192.0.2.1", "10.0.0.0/24", Draws(1))
    one = pod("a", VolumeSpec("d", "secret"))
    runtime.create_sandbox(one)
    assert codes(runtime, one, 2) == [4, 4]


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        ("hostname", "web-0\n"),
        ("echo $HOSTNAME", "web-0\n"),
        ("id; id -u; whoami", "uid=0(root) gid=0(root) groups=0(root)\n0\nroot\n"),
        ("pwd; cd /data && pwd; echo 1 > a; cat /data/a", "/\n/data\n1\n"),
        ("env | grep NAME | sort", "HOSTNAME=web-0\nNAME=x\n"),
        ("printenv NAME", "x\n"),
    ],
)
def test_a_script_sees_where_it_runs(script: str, printed: str) -> None:
    runtime = Runtime(1, "192.0.2.1", "10.0.0.0/24", Draws(1))
    one = pod("web-0", VolumeSpec("d", "emptyDir"))
    spec = container("c", "sh", "-c", script, script=SCRIPT)
    one.spec = one.spec._replace(containers=(spec,))
    runtime.create_sandbox(one)
    around = runtime.around(one, spec, 0, 0, 1)
    assert around is not None
    run = run_around(command_of(spec), around)
    assert (run.run_ns, run.exit_code, run.text("")) == (0, 0, printed)


def test_a_script_sees_addresses_of_both_families() -> None:
    """The list that the runtime tells is /etc/hosts; the node's own family is first elsewhere."""
    runtime = Runtime(1, "2001:db8::1,192.0.2.1", "fd00:1::/64,10.0.0.0/24", Draws(1))
    fields = ("podIP", "podIPs", "hostIP", "hostIPs")
    variables = [Variable(each, source=EnvRef("Field", f"status.{each}")) for each in fields]
    echo = "echo $podIP $podIPs $hostIP $hostIPs; tail -n 2 /etc/hosts"
    one = pod("web-0", VolumeSpec("d", "emptyDir"))
    spec = container("c", "sh", "-c", echo, script=ScriptSpec(tuple(variables), ()))
    one.spec = one.spec._replace(containers=(spec,))
    runtime.create_sandbox(one)
    around = runtime.around(one, spec, 0, 0, 1)
    assert around is not None
    assert run_around(command_of(spec), around).text("").splitlines() == [
        "fd00:1::2 fd00:1::2,10.0.0.2 2001:db8::1 2001:db8::1,192.0.2.1",
        "10.0.0.2\tweb-0",
        "fd00:1::2\tweb-0",
    ]


def test_a_host_name_is_the_pod_s_own_if_it_asks_for_one() -> None:
    one = pod("job-0-x7k2p", VolumeSpec("d", "emptyDir"))
    assert hostname(one) == "job-0-x7k2p"
    one.spec = one.spec._replace(hostname="job-0")
    assert hostname(one) == "job-0"


class Node(NoSources):
    def allocatable(self, resource: str) -> str:
        return {"cpu": "3920m"}.get(resource, "")


def test_a_container_without_a_limit_may_have_all_of_its_node_or_pod() -> None:
    runtime = Runtime(1, "192.0.2.1", "10.0.0.0/24", Draws(1))
    sources = [EnvRef("Resource", f"limits.{each}") for each in ("cpu", "memory")]
    variables = tuple(Variable(each.key[7:], source=each) for each in sources)
    spec = container("c", "sh", "-c", "env", script=ScriptSpec(variables))
    one = pod("a", VolumeSpec("d", "emptyDir"))
    one.spec = one.spec._replace(containers=(spec,))
    runtime.create_sandbox(one)
    around = runtime.around(one, spec, 0, 0, 1, Node())
    assert around is not None
    assert around.variables["cpu"] == "4"
    assert "memory" not in around.variables
    one.spec = one.spec._replace(own_json=b'{"limits":{"cpu":"2","memory":"1Gi"}}')
    around = runtime.around(one, spec, 0, 0, 1, Node())
    assert around is not None
    assert (around.variables["cpu"], around.variables["memory"]) == ("2", str(1 << 30))
