"""Pull credentials: what image credential providers have a kubelet ask of the API server.

    begin --GET of the ServiceAccount--> POST of a token, unless one is known --all asked--> done

The lookup comes before each pull, one provider after another. What fails is left out: the pull is
then tried without those credentials.
Source: pkg/credentialprovider/plugin/plugin.go, provide, getServiceAccountData,
getServiceAccountToken; pkg/kubelet/images/image_manager.go, makeLookupPullCredentialsFunc;
pkg/kubelet/token/token_manager.go, GetServiceAccountToken.
Differs: the plug-ins take no time and always have credentials for a token.
"""

from dataclasses import dataclass, field

from fleet.clock import NS_PER_S
from fleet.k8s.effects import ApiCall, Op, PodTarget, Reply, TokenRequest
from fleet.k8s.pods import Pod, PodUid, ServiceAccountView, Token
from fleet.kubelet.turn import Turn
from fleet.profile.kubelet_configuration import CredentialProvider
from fleet.profile.node_model import NodeModel

GATE = "KubeletServiceAccountTokenForCredentialProviders"
TOKEN_LIFE_S = 3600
"""What the API server gives a token whose life nobody asked for."""


@dataclass(slots=True, eq=False)
class _Lookup:
    """The providers that a pod's pull still has to ask, and whether one gave credentials."""

    image: str
    left: tuple[CredentialProvider, ...]
    is_found: bool = False


@dataclass(slots=True, eq=False)
class PullCredentials:
    """The lookups of one node; made with the first pull that a provider is asked about."""

    _lookups: dict[PodUid, _Lookup] = field(default_factory=dict)
    _renew_ns: dict[tuple[PodUid, str], int] = field(
        default_factory=dict
    )  # of each token, by its audience

    def begin(self, pod: Pod, image: str, turn: Turn) -> bool:
        """Begin a lookup for an image, by its full name; return whether there is one."""
        providers = providers_of(turn.env.model, image)
        if not pod.spec.service_account or not providers:
            return False
        self._lookups[pod.uid] = _Lookup(image, providers)
        self._read_account(pod, turn)
        return True

    def is_asking(self, uid: PodUid) -> bool:
        """Return whether a lookup of a pod is not over."""
        lookup = self._lookups.get(uid)
        return lookup is not None and bool(lookup.left)

    def is_done(self, uid: PodUid, image: str) -> bool:
        """Return whether the lookup for an image is over."""
        lookup = self._lookups.get(uid)
        return lookup is not None and not lookup.left and lookup.image == image

    def take(self, uid: PodUid, image: str) -> bool | None:
        """Return whether the lookup for an image gave credentials, None if there was none."""
        lookup = self._lookups.get(uid)
        if lookup is None or lookup.left or lookup.image != image:
            return None
        del self._lookups[uid]
        return lookup.is_found

    def on_reply(self, pod: Pod, call: ApiCall, reply: Reply, turn: Turn) -> None:
        """Take a ServiceAccount or a token, and go on."""
        lookup = self._lookups.get(pod.uid)
        if lookup is None or not lookup.left:
            return
        if call.op is Op.GET_SERVICE_ACCOUNT and reply.ok:
            account = reply.record
            assert isinstance(account, ServiceAccountView), reply
            if self._ask_token(pod, lookup, account, turn):
                return
        elif call.op is Op.CREATE_PULL_TOKEN and reply.ok:
            lookup.is_found = True
            self._keep(pod, lookup.left[0], reply, turn)
        lookup.left = lookup.left[1:]
        if lookup.left:
            self._read_account(pod, turn)

    def forget(self, uid: PodUid) -> None:
        """Drop what is kept of a pod."""
        self._lookups.pop(uid, None)
        for key in [key for key in self._renew_ns if key[0] == uid]:
            del self._renew_ns[key]

    def _read_account(self, pod: Pod, turn: Turn) -> None:
        target = PodTarget(pod.namespace, pod.spec.service_account)
        turn.call(Op.GET_SERVICE_ACCOUNT, pod.uid, target)

    def _ask_token(
        self, pod: Pod, lookup: _Lookup, account: ServiceAccountView, turn: Turn
    ) -> bool:
        """Ask for a token unless there is a good one; return whether it was asked for."""
        wanted = lookup.left[0].token_attributes
        if not set(wanted.required_service_account_annotation_keys) <= account.annotations:
            return False
        audience = wanted.service_account_token_audience
        if self._renew_ns.get((pod.uid, audience), 0) > turn.now_ns:
            lookup.is_found = True
            return False
        request = TokenRequest(
            pod.namespace,
            pod.spec.service_account,
            audience,
            0,
            pod.name,
            pod.uid,
            account_uid=account.uid,
        )
        turn.call(Op.CREATE_PULL_TOKEN, pod.uid, request)
        return True

    def _keep(self, pod: Pod, provider: CredentialProvider, reply: Reply, turn: Turn) -> None:
        """Use a token for 80 % of its life. Source: requiresRefresh."""
        life_ns = TOKEN_LIFE_S * NS_PER_S
        if isinstance(reply.record, Token) and reply.record.expires_s:
            life_ns = max(reply.record.expires_s * NS_PER_S - turn.wall_ns, 0)
        key = (pod.uid, provider.token_attributes.service_account_token_audience)
        self._renew_ns[key] = turn.now_ns + life_ns * 4 // 5


def providers_of(model: NodeModel, image: str) -> tuple[CredentialProvider, ...]:
    """Return the providers that the nodes of a profile ask about an image."""
    if not model.credential_providers or not model.has_gate(GATE, since=(1, 34)):
        return ()
    return tuple(each for each in model.credential_providers if each.matches(image))
