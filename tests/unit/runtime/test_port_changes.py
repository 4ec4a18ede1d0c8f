"""What a runtime tells of the ports that its pods listen on, for whoever has the sockets."""

from world.pod_world import container, make_pod, session_of

from fleet.clock import Draws
from fleet.k8s.pods import Pod, PortSpec
from fleet.runtime.ports import PortChange, PortChanges
from fleet.runtime.runtime import Runtime


def declaring(*ports: PortSpec) -> Pod:
    return make_pod(container("c", ports=ports), container("d", ports=ports))


def test_a_pod_listens_from_its_sandbox_to_its_end() -> None:
    changes = PortChanges()
    runtime = Runtime(3, "192.0.2.1", "10.1.2.0/24", Draws(5), changes)
    pod = declaring(PortSpec(80), PortSpec(53, "UDP"), PortSpec(443))
    runtime.create_sandbox(pod)
    runtime.stop_sandbox(pod.uid)
    runtime.remove(pod.uid)
    assert list(changes) == [
        PortChange(3, pod.uid, "10.1.2.2", (80, 443)),
        PortChange(3, pod.uid, "10.1.2.2", ()),
    ]


def test_a_pod_that_declares_nothing_is_not_told_of() -> None:
    changes = PortChanges()
    runtime = Runtime(3, "192.0.2.1", "10.1.2.0/24", Draws(5), changes)
    runtime.create_sandbox(declaring())
    assert not changes


def test_no_answer_is_made_before_there_is_room_for_it() -> None:
    """100 requests at once for a file of 100 kB: 10 MB if all were answered now."""
    files = {"/big": "x" * 100_000}
    session = session_of(make_pod(), files.get)
    asked = b"GET /big HTTP/1.1\r\n\r\n" * 100
    assert session.write(asked, 0) == len(asked)
    got = most = 0
    while (output := session.advance(32 << 10, 0)).data:
        got += output.data.count(b"HTTP/1.1 200 OK")
        most = max(most, len(session._pending))
    assert got == 100
    assert most < 2 << 20
