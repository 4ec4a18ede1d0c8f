"""The certificate manager: attempts, back-off, the wait for approval, the rotation deadline."""

import pytest

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.objects import CertificateKind, SigningRequestView, Validity
from fleet.kubelet.node.certificate_manager import (
    WAIT_NS_MAX,
    Actions,
    CertificateManager,
    CertificateState,
    CertificateTurn,
    ListRequest,
    NewRequest,
    UseCertificate,
    WakeAt,
    WatchRequest,
)

DRAWS = Draws(1)
WALL_S = 1_800_000_000
DAY_S = 86_400
FRESH = Validity(WALL_S, WALL_S + DAY_S)
PEM = b"-----BEGIN CERTIFICATE-----"


class Node:
    """A manager, its clock, and what it asked for last."""

    def __init__(self, number: int = 0, *, rotates: bool = True) -> None:
        self.manager = CertificateManager(number, CertificateKind.CLIENT, rotates=rotates)
        self.now_ns = 1 * NS_PER_S
        self.out: Actions = []

    def turn(self, later_ns: int = 0) -> CertificateTurn:
        now_ns = self.now_ns + later_ns
        return CertificateTurn(DRAWS, now_ns, WALL_S * NS_PER_S + now_ns, self.out)

    def start(self, held: Validity | None = None) -> Actions:
        self.manager.start(held, self.turn())
        return self.taken()

    def taken(self) -> Actions:
        out, self.out = self.out, []
        return out

    def created(self, view: SigningRequestView | None) -> Actions:
        self.manager.on_created(view, self.turn())
        return self.taken()

    def seen(self, view: SigningRequestView | None) -> Actions:
        self.manager.on_seen(view, self.turn())
        return self.taken()

    def stored(self, held: Validity | None) -> Actions:
        self.manager.on_stored(held, self.turn())
        return self.taken()

    def sleep(self) -> Actions:
        """Let the manager's own timer fire, and return what it does."""
        self.now_ns = self.manager._due_ns
        self.manager.on_timer(self.turn())
        return self.taken()

    def until_watching(self) -> None:
        self.start()
        self.created(SigningRequestView("csr-1", "u1"))
        self.manager.on_listed(ok=True, turn=self.turn())
        assert self.taken() == [WatchRequest("csr-1")]


def test_a_node_without_a_certificate_asks_lists_and_watches() -> None:
    node = Node()
    assert node.start() == [NewRequest()]
    created = node.created(SigningRequestView("csr-1", "u1"))
    assert created == [WakeAt(node.now_ns + WAIT_NS_MAX), ListRequest("csr-1")]
    node.manager.on_listed(ok=True, turn=node.turn())
    assert node.taken() == [WatchRequest("csr-1")]
    assert node.seen(SigningRequestView("csr-1", "u1")) == []
    assert node.seen(SigningRequestView("csr-1", "u1", is_approved=True)) == []
    issued = SigningRequestView("csr-1", "u1", PEM, is_approved=True)
    assert node.seen(issued) == [UseCertificate(PEM)]
    node.stored(FRESH)
    assert node.manager.state is CertificateState.HOLDING


def test_a_certificate_alone_is_no_approval() -> None:
    node = Node()
    node.until_watching()
    assert node.seen(SigningRequestView("csr-1", "u1", PEM)) == []


@pytest.mark.parametrize("number", range(50))
def test_it_is_renewed_when_70_to_90_percent_of_its_life_are_over(number: int) -> None:
    node = Node(number)
    (wake,) = node.start(FRESH)
    assert isinstance(wake, WakeAt)
    share = (wake.due_ns - node.now_ns + node.turn().wall_ns - WALL_S * NS_PER_S) / (
        DAY_S * NS_PER_S
    )
    assert 0.7 <= share < 0.9
    assert node.sleep() == [NewRequest()]


def test_deadlines_of_nodes_that_start_together_are_spread() -> None:
    dues = {Node(number).start(FRESH)[0] for number in range(100)}
    assert len(dues) == 100


def test_a_deadline_that_has_passed_is_not_waited_for() -> None:
    node = Node()
    old = Validity(WALL_S - DAY_S, WALL_S + 60)
    assert node.start(old) == [WakeAt(node.now_ns + NS_PER_S)]


def test_without_rotation_a_certificate_is_kept_to_its_end() -> None:
    assert Node(rotates=False).start(FRESH) == []


def test_failed_attempts_back_off_to_32_seconds() -> None:
    """Source: wait.ExponentialBackoff of 2 s x 2, jitter 0.1, 5 steps; then PollInfinite(32 s)."""
    node = Node()
    node.start()
    delays_s = []
    for _ in range(7):
        before_ns = node.now_ns
        (wake,) = node.created(None)
        assert isinstance(wake, WakeAt)
        assert node.sleep() == [NewRequest()]
        delays_s.append((node.now_ns - before_ns) / NS_PER_S)
    for delay_s, least_s in zip(delays_s[:4], (2, 4, 8, 16), strict=True):
        assert least_s <= delay_s < least_s * 1.1
    assert delays_s[4:] == [32, 32, 32]


def test_a_timer_that_is_stale_does_nothing() -> None:
    node = Node()
    node.start(FRESH)
    node.manager.on_timer(node.turn(NS_PER_S))
    assert node.taken() == []


@pytest.mark.parametrize(
    "bad",
    [
        None,
        SigningRequestView("csr-1", "other"),
        SigningRequestView("csr-1", "u1", refusal="no"),
    ],
    ids=["deleted", "another uid", "denied"],
)
def test_a_request_that_is_lost_is_made_anew(bad: SigningRequestView | None) -> None:
    node = Node()
    node.until_watching()
    (wake,) = node.seen(bad)
    assert isinstance(wake, WakeAt)
    assert node.seen(SigningRequestView("csr-1", "u1", PEM, is_approved=True)) == []
    assert node.sleep() == [NewRequest()]


def test_nobody_waits_longer_than_a_quarter_of_an_hour() -> None:
    node = Node()
    node.until_watching()
    node.now_ns += WAIT_NS_MAX
    node.manager.on_timer(node.turn())
    assert node.manager.state is CertificateState.BACKING_OFF


def test_a_watch_that_ends_is_opened_again_after_a_second() -> None:
    node = Node()
    node.until_watching()
    node.manager.on_watch_ended(node.turn())
    assert node.taken() == [WakeAt(node.now_ns + NS_PER_S)]
    assert node.sleep() == [WatchRequest("csr-1")]


def test_a_list_that_fails_is_repeated_each_second() -> None:
    node = Node()
    node.start()
    node.created(SigningRequestView("csr-1", "u1"))
    for _ in range(3):
        node.manager.on_listed(ok=False, turn=node.turn())
        assert node.taken() == [WakeAt(node.now_ns + NS_PER_S)]
        assert ListRequest("csr-1") in node.sleep()


def test_a_certificate_that_cannot_be_kept_counts_as_a_failure() -> None:
    node = Node()
    node.until_watching()
    node.seen(SigningRequestView("csr-1", "u1", PEM, is_approved=True))
    (wake,) = node.stored(None)
    assert isinstance(wake, WakeAt)
    assert node.manager.state is CertificateState.BACKING_OFF
