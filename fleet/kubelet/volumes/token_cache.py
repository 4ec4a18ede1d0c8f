"""The service-account tokens of the pods of one node, for projected volumes and for CSI drivers.

Only programs of plug-ins can read the text of a token: without any it is not kept.
Those of projected volumes are asked for again before they are over, as a pod is synced again.
A CSIDriver names audiences and lives (`tokenRequests`). A volume that is published asks for one
after another; one that is known, and not near its end, is given again. So a volume that is
published again all the time (`requiresRepublish`) has requests only every 80 % of a token's life.
Source: pkg/kubelet/token/token_manager.go, Manager.cache, keyFunc, requiresRefresh,
GetServiceAccountToken; pkg/volume/csi/csi_mounter.go, podServiceAccountTokenAttrs.
Differs: a projected volume with the same audience and life has a token of its own.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from fleet.clock import NS_PER_S
from fleet.k8s.effects import Op, Reply, Timer, TokenRequest
from fleet.k8s.pods import Pod, PodUid, Token, TokenSource, VolumeSpec
from fleet.kubelet.turn import Turn
from fleet.runtime.programs import has_plug_ins

TOKEN_JITTER_S = 10  # token_manager.go, maxJitter
RESYNCS = 1.25  # syncFrequency by the mean jitter: how often a pod looks at its tokens
HOP_NS = 300 * NS_PER_S
_STREAM_TOKEN = 0x70102

LEFT_MAX = 16  # pods that have ended whose tokens are kept


@dataclass(slots=True, eq=False)
class TokenCache:
    """The newest token of each pod, audience and life, and when there has to be a newer one.

    One timer is armed, for the first that is due, and for HOP_NS at most: a timer that waited for
    most of an hour would outlive a pod, and a node without pods keeps nothing that knows of it.
    """

    _refresh: dict[TokenRequest, int] = field(default_factory=dict)  # when each is renewed
    _texts: dict[PodUid, dict[str, str]] | None = None  # for plug-ins, by name
    _armed_ns: int = 0
    _left: tuple[PodUid, ...] = ()  # whose pods are gone

    def keep(self, uid: PodUid, source: TokenSource | TokenRequest, text: str) -> None:
        """Take a new token in the place of the last, if anybody can read it."""
        if has_plug_ins():
            if self._texts is None:
                self._texts = {}
            self._texts.setdefault(uid, {})[_name(source)] = text

    def text(self, uid: PodUid, source: TokenSource) -> str:
        """Return a token, "" if there is none."""
        return (self._texts or {}).get(uid, {}).get(_name(source), "")

    def forget(self, uid: PodUid, *, is_read: bool) -> None:
        """Drop the tokens of a pod that is gone.

        `is_read`: its log is computed from them, so that those of the last such pods are kept.
        """
        for request in [each for each in self._refresh if each.pod_uid == uid]:
            del self._refresh[request]
        if self._texts is None:
            return
        if not is_read:
            self._texts.pop(uid, None)
        elif uid in self._texts and uid not in self._left:
            self._left = (*self._left, uid)[-LEFT_MAX - 1 :]
            if len(self._left) > LEFT_MAX:
                self._texts.pop(self._left[0], None)
                self._left = self._left[1:]

    def due(self, turn: Turn) -> list[TokenRequest]:
        """Return what is to be asked for again by now, and wait for the next one."""
        found = [request for request, due_ns in self._refresh.items() if turn.now_ns >= due_ns]
        for request in found:
            del self._refresh[request]
        if turn.now_ns >= self._armed_ns:
            self._armed_ns = 0
            if self._refresh:
                self._arm(min(self._refresh.values()), turn)
        return found

    def _arm(self, due_ns: int, turn: Turn) -> None:
        due_ns = min(due_ns, turn.now_ns + HOP_NS)
        if not self._armed_ns or due_ns < self._armed_ns:
            self._armed_ns = due_ns
            turn.arm(due_ns, Timer.TOKENS)

    def on_reply(self, uid: PodUid, request: TokenRequest, reply: Reply, turn: Turn) -> None:
        """Keep a token, and plan when to ask for the next one."""
        if not reply.ok:
            return
        self._plan(request, reply, turn)
        if isinstance(reply.record, Token) and reply.record.text:
            self.keep(uid, request, reply.record.text)

    def request(self, pod: Pod, spec: VolumeSpec, turn: Turn) -> int:
        """Ask for the tokens of a volume that are not known; return how many these are."""
        asked = 0
        for token in spec.tokens:
            request = TokenRequest(
                pod.namespace,
                pod.spec.service_account or "default",
                token.audience,
                token.expiration_s,
                pod.name,
                pod.uid,
                spec.name,
            )
            if request not in self._refresh:
                asked += 1
                turn.call(Op.CREATE_TOKEN, pod.uid, request)
        return asked

    def _plan(self, request: TokenRequest, reply: Reply, turn: Turn) -> None:
        """Renew at 80 % of the life or a day, at a resync. Source: requiresRefresh."""
        left_ns = request.expiration_s * NS_PER_S
        if isinstance(reply.record, Token) and reply.record.expires_s:
            left_ns = reply.record.expires_s * NS_PER_S - turn.wall_ns
        share = turn.draw(_STREAM_TOKEN, request.pod_uid)
        age_ns = min(left_ns * 4 // 5, LIFE_MAX_NS)
        due_ns = turn.now_ns + max(age_ns - int(share * TOKEN_JITTER_S * NS_PER_S), NS_PER_S)
        self._refresh_at(request, due_ns, share, turn)

    def try_again(self, request: TokenRequest, turn: Turn) -> None:
        """Ask at the next resync for what could not be renewed. Source: GetServiceAccountToken."""
        self._refresh_at(request, turn.now_ns, 1, turn)

    def _refresh_at(self, request: TokenRequest, due_ns: int, share: float, turn: Turn) -> None:
        due_ns += int(share * RESYNCS * turn.env.model.kubelet.sync_frequency_ns)
        self._refresh[request] = due_ns
        self._arm(due_ns, turn)


def _name(source: TokenSource | TokenRequest) -> str:
    """Name a token: a pod has one for each audience and life."""
    return f"{source.expiration_s} {source.audience}"


LIFE_DEFAULT_S = 3600  # authentication/v1/defaults.go, SetDefaults_TokenRequestSpec
LIFE_MAX_NS = 24 * 3600 * NS_PER_S  # maxTTL: an older one is refreshed
_STREAM_JITTER = 0x70109
_UNSET = "kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: %s"


class _Known(NamedTuple):
    """A token, without its text: nobody but a driver reads that."""

    expires_ns: int  # wall
    life_ns: int

    def requires_refresh(self, turn: Turn, about: str) -> bool:
        """Return whether it is old, or has less than 20 % of its life left."""
        jitter_ns = int(turn.draw(_STREAM_JITTER, about) * TOKEN_JITTER_S) * NS_PER_S
        issued_ns = self.expires_ns - self.life_ns
        if turn.wall_ns > issued_ns + LIFE_MAX_NS - jitter_ns:
            return True
        return turn.wall_ns > self.expires_ns - self.life_ns // 5 - jitter_ns


@dataclass(slots=True, eq=False)
class CSITokens:
    """The tokens of the CSI volumes of one node, and which of them are awaited."""

    _known: dict[PodUid, dict[tuple[str, int], _Known]] = field(default_factory=dict)
    # by volume: the place of the next one
    _awaited: dict[tuple[PodUid, str], int] = field(default_factory=dict)

    def forget(self, uid: PodUid) -> None:
        """Drop the tokens of a pod that is gone."""
        self._known.pop(uid, None)
        for key in [each for each in self._awaited if each[0] == uid]:
            del self._awaited[key]

    def are_there(self, pod: Pod, volume: str, driver: str, turn: Turn) -> bool:
        """Return whether a volume has all that its driver wants; else the next one is asked for."""
        found = turn.env.csi_drivers.get(driver)
        wanted = found.tokens if found is not None else ()
        known = self._known.get(pod.uid, {})
        at = self._awaited.pop((pod.uid, volume), 0)
        for place, (audience, life_s) in enumerate(wanted[at:], at):
            token = known.get((audience, life_s))
            if token is not None and not token.requires_refresh(turn, f"{pod.uid}/{audience}"):
                continue
            self._awaited[pod.uid, volume] = place
            account = pod.spec.service_account or "default"
            turn.call(
                Op.CREATE_CSI_TOKEN,
                pod.uid,
                TokenRequest(pod.namespace, account, audience, life_s, pod.name, pod.uid, volume),
            )
            return False
        return True

    def on_reply(self, pod: Pod, request: TokenRequest, reply: Reply, turn: Turn) -> str:
        """Take an answer; return why the volume cannot be published, "" if it may go on."""
        key = (request.audience, request.expiration_s)
        volume = (pod.uid, request.volume)
        if volume not in self._awaited:
            return ""
        known = self._known.setdefault(pod.uid, {})
        if reply.ok and isinstance(reply.record, Token):
            life_ns = (request.expiration_s or LIFE_DEFAULT_S) * NS_PER_S
            expires_ns = reply.record.expires_s * NS_PER_S or turn.wall_ns + life_ns
            known[key] = _Known(expires_ns, life_ns)
        elif key not in known:
            del self._awaited[volume]
            return _UNSET % f"failed to fetch token: {reply.message}"
        elif turn.wall_ns > known[key].expires_ns:
            del self._awaited[volume]
            text = f"token {_key(request)} expired and refresh failed: {reply.message}"
            return _UNSET % text
        self._awaited[volume] += 1
        return ""


def _key(request: TokenRequest) -> str:
    """Name a token as the manager does, in the syntax of Go. Source: keyFunc."""
    audiences = f'[]string{{"{request.audience}"}}' if request.audience else "[]string{}"
    pod = f'Kind:"Pod", APIVersion:"v1", Name:"{request.pod_name}", UID:"{request.pod_uid}"'
    return (
        f'"{request.service_account}"/"{request.namespace}"/{audiences}/{request.expiration_s}'
        f'/v1.BoundObjectReference{{{pod}}}/""'
    )
