"""Pods that ask one another: servers, commands that reach them, hooks that do."""

from types import SimpleNamespace
from typing import cast

import pytest
from world.pod_world import UID, World, container, make_pod

from fleet.k8s.lifecycle import ContainerLifecycle, Hook
from fleet.k8s.pods import ContainerSpec, Pod, PortSpec
from fleet.k8s.scripts import ScriptSpec, Variable
from fleet.k8s.services import ServicePort, ServiceView
from fleet.k8s.streams import LogOptions, Refusal
from fleet.kubelet.host_interface import container_logs, exec_in
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.reactor.pod_network import NOBODY_THERE, REFUSED, PodNetwork
from fleet.reactor.roster import Roster
from fleet.runtime.http_message import HttpReply, HttpRequest

AGNHOST = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"
CLIENT, SERVER = "client-uid", UID


def agnhost(*args: str, **fields: object) -> ContainerSpec:
    return container("s", image=AGNHOST, args=args, **fields)


class Net:
    """A node with a server and a client."""

    def __init__(
        self,
        server: ContainerSpec,
        client: ContainerSpec | None = None,
        labels: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.world = World()
        kubelet = SimpleNamespace(
            pods=self.world.loop,
            env=self.world.env,
            facts=self.world.facts,
            on_container_changed=lambda *_: None,
        )
        self.kubelet = cast("VirtualKubelet", kubelet)
        roster = cast("Roster", SimpleNamespace(living=lambda: [(None, kubelet)]))
        services = self.world.env.services
        self.world.env.world = PodNetwork(roster, services)
        self.world.create(make_pod(server, name="server", uid=SERVER, labels=labels))
        self.world.run(5)
        made = client or container("c", "sleep", "9999", image="busybox")
        self.world.create(make_pod(made, name="client", uid=CLIENT))
        self.world.run(5)

    def pod(self, uid: str) -> Pod:
        return self.world.pods[uid]

    @property
    def address(self) -> str:
        return self.pod(SERVER).status.pod_ip

    def get(self, target: str, port: int = 8080, **fields: object) -> object:
        network = self.world.env.world.seen_from("10.244.3.99", "me", "default", self.world.now_ns)
        request = HttpRequest(target=target)._replace(**fields)  # type: ignore[arg-type]
        return network.request(self.address, port, request, 0)

    def run(self, *command: str) -> tuple[str, str, int | None]:
        now_ns = self.world.now_ns
        pod = self.pod(CLIENT)
        session = exec_in(self.kubelet, pod, "c", command, stdin=False, tty=False, now_ns=now_ns)
        assert not isinstance(session, Refusal), session
        out = session.advance(9999, now_ns + 10**12)
        return out.stdout.decode(), out.stderr.decode(), out.exit_code

    def log(self) -> str:
        now_ns = self.world.now_ns + 1
        reader = container_logs(self.kubelet, self.pod(SERVER), "s", LogOptions(), now_ns)
        assert not isinstance(reader, Refusal), reader
        return reader.read(99999, now_ns).data.decode()


@pytest.mark.parametrize(
    ("target", "code", "body"),
    [
        ("/hostname", 200, b"server"),
        ("/echo?msg=hi&code=418", 418, b"hi"),
        ("/clientip", 200, b"10.244.3.99:40000"),
        ("/serverport", 200, b"8080"),
        ("/readyz", 200, b"ok"),
        ("/shell?cmd=echo+x", 200, b'{"output":"x\\n"}'),
        ("/dial?host=127.0.0.1&port=8080&request=hostname", 200, b'{"responses":["server"]}'),
        ("/dial?host=127.0.0.1&port=8081&request=hostname&protocol=udp", 200, b"server"),
        ("/dial?host=127.0.0.1&port=81&request=x", 200, b"connection refused"),
        ("/dial?host=127.0.0.1&port=8080&request=x&tries=a", 400, b"tries parameter"),
    ],
)
def test_netexec_answers_as_its_source_does(target: str, code: int, body: bytes) -> None:
    found = Net(agnhost("netexec")).get(target)
    assert isinstance(found, HttpReply), found
    assert found.code == code
    assert body in found.body


def test_a_server_that_asks_itself_for_ever_is_heard_out() -> None:
    net = Net(agnhost("netexec"))
    own = "dial?host=127.0.0.1%26port=8080%26request=hostname"
    assert isinstance(net.get(f"/dial?host=127.0.0.1&port=8080&request={own}"), HttpReply)


def test_who_listens_where() -> None:
    net = Net(agnhost("netexec", "--http-port=80", "--udp-port", "-1"))
    assert isinstance(net.get("/hostname", 80), HttpReply)
    assert net.get("/hostname", 8080) == REFUSED
    network = net.world.env.world.seen_from("", "me", "default", net.world.now_ns)
    assert network.connect("192.0.2.99", 80, 0) == NOBODY_THERE
    assert network.connect("192.0.2.2", 80, 0) == REFUSED  # the node's own
    assert network.datagram(net.address, 8081, "hostname", 0) is None


def test_others_of_agnhost() -> None:
    ports = ScriptSpec((Variable("SERVE_PORT_80", "foo"), Variable("SERVE_TLS_PORT_443", "bar")))
    porter = Net(agnhost("porter", script=ports))
    assert porter.get("/", 80) == HttpReply(200, b"foo")
    assert porter.get("/", 443, is_tls=True) == HttpReply(200, b"bar")
    assert porter.get("/", 443).code == 400  # type: ignore[attr-defined]
    assert Net(agnhost("serve-hostname", "--port=80")).get("/", 80) == HttpReply(200, b"server")
    nettest = Net(agnhost("nettest"))
    nettest.get("/write", method="POST", body=b'{"Source": "prestop"}')
    assert b'"prestop": 1' in nettest.get("/read").body  # type: ignore[attr-defined]
    book = Net(agnhost("guestbook", "--http-port", "6379"))
    book.get("/set?key=messages&value=x", 6379)
    assert book.get("/get?key=messages", 6379).body == b'{"data":"x"}'  # type: ignore[attr-defined]


def test_a_replica_of_a_guestbook_has_what_its_primary_took() -> None:
    args = ("guestbook", "--http-port", "6379")
    replica = agnhost(*args, "--replicaof", "web")._replace(name="c")
    net = Net(agnhost(*args), replica, labels=(("app", "s"),))
    with_service(net, service(ServicePort(6379)))
    assert net.get("/set?key=a&value=1", 6379) == HttpReply(200, b'{"message":"Updated"}')
    at = f"http://{net.pod(CLIENT).status.pod_ip}:6379"
    assert net.run("curl", "-s", f"{at}/get?key=a")[0] == '{"data":"1"}'
    net.get("/set?key=a&value=2", 6379)
    assert net.run("curl", "-s", f"{at}/get?key=a")[0] == '{"data":"2"}'


def test_commands_reach_a_server() -> None:
    net = Net(agnhost("netexec"))
    where = f"{net.address}:8080"
    assert net.run("curl", "-s", f"http://{where}/hostname") == ("server", "", 0)
    script = f"curl -sS -w '%{{http_code}}' -o /dev/null http://{where}/echo?code=404 && echo"
    assert net.run("sh", "-c", script)[0] == "404\n"
    assert net.run("curl", "-sS", f"{net.address}:81")[2] == 7
    assert net.run("curl", "-s", "--connect-timeout", "1", "192.0.2.99") == ("", "", 28)
    assert net.run("curl", "-s", "nowhere")[2] == 6
    assert net.run("wget", "-qO-", f"http://{where}/hostname") == ("server", "", 0)
    assert net.run("wget", "-O-", f"http://{net.address}:81")[2] == 1
    assert net.run("nc", "-vz", "-w", "2", net.address, "8080")[2] == 0
    assert net.run("nc", "-z", net.address, "81") == ("", "", 1)
    script = f"curl -s http://{where}/hostName | grep -v '^\\s*$'"
    assert net.run("sh", "-c", script) == ("server\n", "", 0)
    said = net.run("sh", "-c", f"echo hostName | nc -w 1 -u {net.address} 8081")
    assert said == ("server", "", 0)


def service(*ports: ServicePort, name: str = "web", **fields: object) -> ServiceView:
    made = ServiceView("default", name, "1", "10.96.0.9", ports, (("app", "s"),))
    return made._replace(**fields)  # type: ignore[arg-type]


def with_service(net: Net, made: ServiceView) -> Net:
    net.world.env.services[made.namespace, made.name] = made
    return net


@pytest.mark.parametrize(
    "host",
    [
        *("web", "web.default", "web.default.svc", "web.default.svc.cluster.local."),
        *("10.96.0.9", "198.51.100.7", "alias"),
    ],
)
def test_a_service_leads_to_its_pods(host: str) -> None:
    net = Net(agnhost("netexec"), labels=(("app", "s"),))
    with_service(net, service(ServicePort(80, target=8080), external_ips=("198.51.100.7",)))
    with_service(net, service(name="alias", external_name="web.default", cluster_ip=""))
    assert net.run("curl", "-s", f"http://{host}/hostname") == ("server", "", 0)
    assert net.run("curl", "-s", "-m", "1", f"http://{host}:81/hostname")[2] == 28


def test_ports_of_services() -> None:
    named = (PortSpec(8080, name="http"),)
    net = Net(agnhost("netexec", ports=named), labels=(("app", "s"),))
    ports = (
        ServicePort(80, "http", target="http", node_port=30080),
        ServicePort(53, "", "UDP", 8081),
    )
    with_service(net, service(*ports))
    assert net.run("curl", "-s", "http://192.0.2.2:30080/hostname")[0] == "server"
    said = net.run("sh", "-c", "echo hostName | nc -v -u -w 2 web 53")
    assert said[0] == "server"
    said = net.run("sh", "-c", "echo hostName | nc -v -t -w 2 web 80")
    assert said[0].startswith("HTTP/1.1 400 Bad Request\r\n")
    assert said[2] == 0


def test_names_of_services_are_looked_up() -> None:
    net = with_service(Net(agnhost("netexec")), service(ServicePort(80)))
    found = net.run("nslookup", "web.default.svc.cluster.local")
    assert found[0].endswith("Name:\tweb.default.svc.cluster.local\nAddress: 10.96.0.9\n\n")
    assert found[0].startswith("Server:\t\t10.96.0.10\n")
    assert net.run("nslookup", "web.other")[2] == 1


def test_a_service_without_ready_pods_refuses() -> None:
    net = with_service(Net(agnhost("netexec")), service(ServicePort(80, target=8080)))
    assert net.run("curl", "-s", "http://web/")[2] == 7
    headless = service(ServicePort(80), cluster_ip="None")
    assert with_service(net, headless).run("curl", "-s", "http://web/")[2] == 6


def test_ports_of_the_node() -> None:
    ports = (PortSpec(8080, host_port=54323, host_ip="127.0.0.1"), PortSpec(8081, "UDP", "", 5000))
    net = Net(agnhost("netexec", ports=ports))
    network = net.world.env.world.seen_from("192.0.2.2", "n", "default", net.world.now_ns)
    asked = HttpRequest(target="/hostname")
    assert network.request("127.0.0.1", 54323, asked, 0) == HttpReply(200, b"server")
    assert network.request("192.0.2.2", 54323, asked, 0) == REFUSED
    assert network.datagram("192.0.2.2", 5000, "hostname", 0) == "server"


def test_agnhost_that_waits_listens_nowhere() -> None:
    assert Net(agnhost()).get("/", 80) == REFUSED
    assert isinstance(Net(container("s")).get("/", 80), HttpReply)  # who knows


def test_requests_are_in_the_log() -> None:
    net = Net(agnhost("netexec"))
    assert "1 log.go:245] Started HTTP server on port 8080\n" in net.log()
    net.run("curl", "-s", f"{net.address}:8080/echo?msg=a")
    assert net.log().endswith("] GET /echo?msg=a&code=\n")


@pytest.mark.parametrize("kind", ["exec", "httpGet"])
@pytest.mark.parametrize("when", ["post_start", "pre_stop"])
def test_hooks_reach_a_server_once(kind: str, when: str) -> None:
    host = "10.244.3.2"
    hook = Hook("httpGet", path="echo?msg=hook", host=host, port=8080)
    if kind == "exec":
        hook = Hook("exec", ("sh", "-c", f"curl http://{host}:8080/echo?msg=hook"))
    life = ContainerLifecycle()._replace(**{when: hook})  # type: ignore[arg-type]
    client = container("c", "sleep", "9999", image="busybox", life=life)
    net = Net(agnhost("netexec"), client)
    assert net.address == host
    if when == "pre_stop":
        assert "hook" not in net.log()
        net.world.delete(CLIENT)
        net.world.run(40)
    assert net.log().count("GET /echo?msg=hook") == 1


def test_a_hook_to_a_port_on_which_nobody_listens_fails() -> None:
    hook = Hook("httpGet", path="/", host="10.244.3.2", port=81)
    client = container("c", "sleep", "9999", life=ContainerLifecycle(post_start=hook))
    net = Net(agnhost("netexec"), client)
    assert "CREATE_EVENT FailedPostStartHook" in net.world.log
    beyond = hook._replace(host="192.0.2.99")  # of which nothing is known
    net = Net(agnhost("netexec"), client._replace(life=ContainerLifecycle(post_start=beyond)))
    assert "CREATE_EVENT FailedPostStartHook" not in net.world.log
