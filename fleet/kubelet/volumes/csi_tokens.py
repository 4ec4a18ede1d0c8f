"""The service-account tokens that CSI drivers want with each NodePublishVolume.

A CSIDriver names audiences and lives (`tokenRequests`). A volume that is published asks for one
after another; one that is known, and not near its end, is given again. So a volume that is
published anew all the time (`requiresRepublish`) has requests only every 80 % of a token's life.
Source: pkg/volume/csi/csi_mounter.go, podServiceAccountTokenAttrs;
pkg/kubelet/token/token_manager.go, GetServiceAccountToken, requiresRefresh, keyFunc.
Differs: a projected volume with the same audience and life has a token of its own.
"""

from typing import NamedTuple

from fleet.clock import NS_PER_S
from fleet.k8s.effects import Op, Reply, TokenRequest
from fleet.k8s.pods import Pod, PodUid, Token
from fleet.kubelet.turn import Turn
from fleet.kubelet.volumes.token_cache import TOKEN_JITTER_S

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


class CSITokens:
    """The tokens of the CSI volumes of one node, and which of them are awaited."""

    __slots__ = ("_awaited", "_known")

    def __init__(self) -> None:
        self._known: dict[PodUid, dict[tuple[str, int], _Known]] = {}
        self._awaited: dict[tuple[PodUid, str], int] = {}  # by volume: the place of the next one

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
