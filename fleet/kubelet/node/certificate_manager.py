"""The certificate manager: how a node comes by its certificate, and renews it in time.

    REQUESTING --201--> LISTING --200--> WATCHING --issued--> HOLDING --70-90 % of its life--+
        ^                  |                |                                                |
        |                  +--refused, deleted, 15 min--> BACKING_OFF                        |
        +------------------------------------------------------+-----------------------------+

A node without a certificate asks at once. A failed attempt is repeated after 2, 4, 8 and 16 s, then
every 32 s, each time with a new key. One manager serves the client certificate, a second one the
serving certificate where the kubelet's configuration asks for that.
Source: client-go/util/certificate/certificate_manager.go, run, rotateCerts, nextRotationDeadline;
client-go/util/certificate/csr/csr.go, RequestCertificateWithContext, WaitForCertificate.
Differs: a watch that ends is opened again with its initial events, not resumed.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.objects import CertificateKind, SigningRequestView, Validity

BACKOFF_FIRST_NS = 2 * NS_PER_S
BACKOFF_STEPS = 5
BACKOFF_JITTER = 0.1
RETRY_NS = 32 * NS_PER_S  # once the back-off has come to its end
WAIT_NS_MAX = 15 * 60 * NS_PER_S  # certificateWaitTimeout
LIST_AGAIN_NS = 1 * NS_PER_S
ROTATE_FROM, ROTATE_SPREAD = 0.7, 0.2
_STREAM = 0xCE27


class CertificateState(enum.Enum):
    """Where a manager stands."""

    HOLDING = 0  # a certificate that is good until the deadline
    REQUESTING = 1
    LISTING = 2
    WATCHING = 3
    BACKING_OFF = 4


class NewRequest(NamedTuple):
    """Make a key and send a signing request for it."""


class ListRequest(NamedTuple):
    """Look at the request once."""

    name: str


class WatchRequest(NamedTuple):
    """Watch the request; replaces an earlier watch."""

    name: str


class WakeAt(NamedTuple):
    """Call `on_timer` then; stale calls do no harm."""

    due_ns: int


class UseCertificate(NamedTuple):
    """Store the certificate with the key of the request, and present it from now on."""

    certificate: bytes


Action = NewRequest | ListRequest | WatchRequest | WakeAt | UseCertificate
Actions = list[Action]


class CertificateTurn(NamedTuple):
    """One input of a manager: when it came, and where its actions go."""

    draws: Draws
    now_ns: int
    wall_ns: int
    out: Actions


@dataclass(slots=True, eq=False)
class CertificateManager:
    """One certificate of one node."""

    node: int
    kind: CertificateKind
    rotates: bool = True
    state: CertificateState = CertificateState.BACKING_OFF
    _attempts: int = 0  # in all, for the draws
    _failures: int = 0  # since the last certificate
    _due_ns: int = 0
    _limit_ns: int = 0
    _name: str = ""  # of the signing request, and its uid
    _uid: str = ""

    def start(self, held: Validity | None, turn: CertificateTurn) -> None:
        """Begin with the certificate of an earlier process, or with none."""
        if held is None:
            self._request(turn)
        else:
            self._hold(held, turn)

    def on_timer(self, turn: CertificateTurn) -> None:
        """Take a timer that is due."""
        if (
            self.state in (CertificateState.LISTING, CertificateState.WATCHING)
            and turn.now_ns >= self._limit_ns
        ):
            self._fail(turn)
        elif turn.now_ns < self._due_ns:
            return
        elif self.state in (CertificateState.HOLDING, CertificateState.BACKING_OFF):
            self._request(turn)
        elif self.state is CertificateState.LISTING:
            self._wake(turn.now_ns + LIST_AGAIN_NS, turn)  # should no answer come
            turn.out.append(ListRequest(self._name))
        elif self.state is CertificateState.WATCHING:
            self._watch(turn)

    def on_created(self, view: SigningRequestView | None, turn: CertificateTurn) -> None:
        """Take the answer to the request; None if it was refused or lost."""
        if self.state is not CertificateState.REQUESTING:
            return
        if view is None:
            self._fail(turn)
            return
        self.state = CertificateState.LISTING
        self._name, self._uid = view.name, view.uid
        self._limit_ns = turn.now_ns + WAIT_NS_MAX
        self._due_ns = self._limit_ns
        turn.out.append(WakeAt(self._limit_ns))
        turn.out.append(ListRequest(view.name))

    def on_listed(self, *, ok: bool, turn: CertificateTurn) -> None:
        """Take the answer to the LIST; only whether it can be read matters."""
        if self.state is not CertificateState.LISTING:
            return
        if ok:
            self.state = CertificateState.WATCHING
            self._watch(turn)
        else:
            self._wake(turn.now_ns + LIST_AGAIN_NS, turn)

    def on_seen(self, view: SigningRequestView | None, turn: CertificateTurn) -> None:
        """Take the request as the watch shows it; None if it was deleted."""
        if self.state is not CertificateState.WATCHING:
            return
        if view is None or view.uid != self._uid or view.refusal:
            self._fail(turn)
        elif view.is_approved and view.certificate:
            self._failures = 0
            turn.out.append(UseCertificate(view.certificate))

    def on_watch_ended(self, turn: CertificateTurn) -> None:
        """Open the watch again, after a second."""
        if self.state is CertificateState.WATCHING:
            self._wake(turn.now_ns + LIST_AGAIN_NS, turn)

    def on_stored(self, held: Validity | None, turn: CertificateTurn) -> None:
        """Learn that the new certificate is in use; None if it could not be stored."""
        if held is None:
            self._fail(turn)
        else:
            self._hold(held, turn)

    def _hold(self, held: Validity, turn: CertificateTurn) -> None:
        """Wait until 70 to 90 % of the certificate's life are over."""
        self.state = CertificateState.HOLDING
        self._name = self._uid = ""
        if not self.rotates:
            return
        life_s = held.not_after_s - held.not_before_s
        share = ROTATE_FROM + ROTATE_SPREAD * turn.draws.uniform(
            self.node, self._stream, self._attempts
        )
        rotate_ns = held.not_before_s * NS_PER_S + int(life_s * share * NS_PER_S)
        # The loop that looks for the deadline runs once a second.
        self._wake(turn.now_ns + max(rotate_ns - turn.wall_ns, NS_PER_S), turn)

    def _request(self, turn: CertificateTurn) -> None:
        self.state = CertificateState.REQUESTING
        self._attempts += 1
        self._due_ns = 0
        turn.out.append(NewRequest())

    def _watch(self, turn: CertificateTurn) -> None:
        self._due_ns = self._limit_ns
        if turn.now_ns < self._limit_ns:
            turn.out.append(WatchRequest(self._name))

    def _fail(self, turn: CertificateTurn) -> None:
        """Wait before the next attempt. Source: wait.Backoff, then PollInfinite."""
        self.state = CertificateState.BACKING_OFF
        self._failures += 1
        delay_ns = RETRY_NS
        if self._failures < BACKOFF_STEPS:
            jitter = 1 + BACKOFF_JITTER * turn.draws.uniform(
                self.node, self._stream, self._attempts
            )
            delay_ns = int((BACKOFF_FIRST_NS << (self._failures - 1)) * jitter)
        self._wake(turn.now_ns + delay_ns, turn)

    def _wake(self, due_ns: int, turn: CertificateTurn) -> None:
        self._due_ns = due_ns
        turn.out.append(WakeAt(due_ns))

    @property
    def _stream(self) -> int:
        return _STREAM + self.kind
