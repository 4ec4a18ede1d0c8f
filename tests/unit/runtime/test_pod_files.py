"""What a kubelet and a runtime write into a container as its pod asks for it."""

from typing import Any

import pytest
from world.pod_world import container, make_pod

from fleet.clock import Draws
from fleet.k8s.pods import Pod, PodNetworkSpec, VolumeSpec
from fleet.k8s.scripts import MountSpec, ScriptSpec
from fleet.runtime.command import command_of, run_around
from fleet.runtime.runtime import Runtime
from fleet.runtime.shell.process import run_words
from fleet.runtime.surroundings import Place, whole_surroundings
from fleet.wire.api.decode_pod_network import pod_network
from fleet.wire.api.decode_script import container_script
from fleet.wire.api.decode_user import container_user


def printed(pod: Pod, *command: str) -> str:
    """Return what somebody reads who runs a command in the pod's container."""
    runtime = Runtime(1, "192.0.2.1", "10.0.0.0/24", Draws(1))
    place = Place("10.0.0.2", "192.0.2.1", 0, 0, 0.0)
    around = whole_surroundings(runtime.files, pod, pod.spec.containers[0], place, b"")
    return run_words(command, around).text("")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            {},
            (
                "search default.svc.cluster.local svc.cluster.local cluster.local\n"
                "nameserver 10.96.0.10\noptions ndots:5\n"
            ),
        ),
        (
            {
                "dnsPolicy": "None",
                "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["resolv.conf.local"]},
            },
            "search resolv.conf.local\nnameserver 1.1.1.1\n",
        ),
        (
            {
                "dnsPolicy": "ClusterFirst",
                "dnsConfig": {
                    "nameservers": ["1.1.1.1", "10.96.0.10"],
                    "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
                },
            },
            (
                "search default.svc.cluster.local svc.cluster.local cluster.local\n"
                "nameserver 10.96.0.10\nnameserver 1.1.1.1\noptions ndots:2 edns0\n"
            ),
        ),
        ({"dnsPolicy": "Default"}, "nameserver 192.0.2.53\n"),
    ],
)
def test_resolv_conf(spec: dict[str, object], text: str) -> None:
    pod = make_pod(network=pod_network(spec))
    assert printed(pod, "cat", "/etc/resolv.conf") == text


def test_agnhost_shows_what_is_in_them() -> None:
    network = PodNetworkSpec("None", ("1.1.1.1", "8.8.8.8"), ("a", "b"))
    pod = make_pod(container(image="agnhost"), network=network)
    assert printed(pod, "/agnhost", "dns-server-list") == "1.1.1.1,8.8.8.8\n"
    assert printed(pod, "/agnhost", "dns-suffix") == "a,b\n"
    assert printed(pod, "/agnhost", "etc-hosts").startswith("# Kubernetes-managed hosts file.\n")


def test_sysctls_of_a_pod() -> None:
    asked = [{"name": "kernel/shm_rmid_forced", "value": "1"}]
    pod = make_pod(network=pod_network({"securityContext": {"sysctls": asked}}))
    assert printed(pod, "sysctl", "kernel.shm_rmid_forced") == "kernel.shm_rmid_forced = 1\n"
    assert printed(pod, "cat", "/proc/sys/kernel/shm_rmid_forced") == "1\n"
    command = {"command": ["/bin/sysctl", "kernel.shm_rmid_forced"]}
    spec = container("c", *command["command"], script=container_script(command))
    made = make_pod(spec, network=pod.spec.network)
    runtime = Runtime(1, "192.0.2.1", "10.0.0.0/24", Draws(1))
    around = runtime.around(made, spec, 0, 0, 0)
    assert around is not None
    assert run_around(command_of(spec), around).text("") == "kernel.shm_rmid_forced = 1\n"


def test_hosts_of_the_machine() -> None:
    mounts = (MountSpec("/etc/hosts-original", "h", ""),)
    volumes = (VolumeSpec("h", "hostPath", host_path="/etc/hosts"),)
    spec = container(script=ScriptSpec(mounts=mounts))
    assert printed(make_pod(spec, volumes=volumes), "cat", "/etc/hosts-original") == (
        "127.0.0.1\tlocalhost\n"
    )
    both = (*mounts, MountSpec("/etc/hosts", "h", ""))
    spec = container(script=ScriptSpec(mounts=both))
    assert printed(make_pod(spec, volumes=volumes), "cat", "/etc/hosts") == "127.0.0.1\tlocalhost\n"
    own = make_pod(spec._replace(script=ScriptSpec()), volumes=volumes)
    assert printed(own, "cat", "/etc/hosts").startswith("# Kubernetes-managed hosts file.\n")
    shared = make_pod(spec._replace(script=ScriptSpec()), host_network=True)
    assert printed(shared, "cat", "/etc/hosts") == (
        "# Kubernetes-managed hosts file (host network).\n127.0.0.1\tlocalhost\n"
    )


def test_programs_that_read_files_are_given_them() -> None:
    script = container_script({"command": ["hexdump", "-C", "/etc/v/dump.bin"]})
    assert script is not None
    assert script.is_read


def test_an_image_volume_shows_what_is_known_of_its_image() -> None:
    spec = container(image="busybox", script=ScriptSpec(mounts=(MountSpec("/volume", "v", ""),)))
    kitten = VolumeSpec("v", "image", image="registry.k8s.io/e2e-test-images/kitten:1.8")
    pod = make_pod(spec, volumes=(kitten,))
    assert "kitten.jpg" in printed(pod, "cat", "/volume/data.json")
    assert "Alpine Linux" in printed(pod, "cat", "/volume/etc/os-release")
    assert "No such file" in printed(pod, "cat", "/etc/os-release")


@pytest.mark.parametrize(("allowed", "uid"), [(False, 1000), (True, 0), (None, 0)])
def test_a_program_of_root_is_run_as_root_unless_that_is_forbidden(
    allowed: bool | None,  # noqa: FBT001
    uid: int,
) -> None:
    security = {"runAsUser": 1000, "allowPrivilegeEscalation": allowed}
    image = "registry.k8s.io/e2e-test-images/nonewprivs:1.4"
    script = container_script({"image": image})
    user = container_user({"securityContext": security}, {})
    pod = make_pod(container(image=image, script=script, user=user))
    runtime = Runtime(1, "192.0.2.1", "10.0.0.0/24", Draws(1))
    around = runtime.around(pod, pod.spec.containers[0], 0, 0, 0)
    assert around is not None
    ran = run_around(command_of(pod.spec.containers[0]), around)
    assert (ran.text(""), ran.exit_code, ran.run_ns) == (f"Effective uid: {uid}\n", 0, 0)


@pytest.mark.parametrize(
    ("spec", "name", "hosts"),
    [
        ({}, "web", "web"),
        ({"hostname": "a", "subdomain": "s"}, "a", "a.s.default.svc.cluster.local\ta"),
        (
            {"hostname": "a", "subdomain": "s", "setHostnameAsFQDN": True},
            "a.s.default.svc.cluster.local",
            "a.s.default.svc.cluster.local\ta",
        ),
        ({"hostname": "a", "setHostnameAsFQDN": True}, "a", "a"),
        ({"hostname": "a", "subdomain": "s", "hostnameOverride": "b.example"}, *["b.example"] * 2),
        ({"hostnameOverride": f"{'b' * 62}.example"}, *["b" * 62] * 2),
    ],
)
def test_the_host_name(spec: dict[str, Any], name: str, hosts: str) -> None:
    pod = make_pod(container(), network=pod_network(spec), hostname=spec.get("hostname", ""))
    assert printed(pod, "sh", "-c", "hostname; echo $HOSTNAME; cat /etc/hostname") == (
        f"{name}\n" * 3
    )
    assert printed(pod, "tail", "-n", "1", "/etc/hosts") == f"10.0.0.2\t{hosts}\n"
