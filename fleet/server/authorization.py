"""Who may ask a kubelet what: the attributes of a request, and the caches of both reviews.

    certificate of the client CA, or bearer token -> user -> SubjectAccessReview each subresource

Source: pkg/kubelet/server/auth.go, GetRequestAttributes; cmd/kubelet/app/auth.go;
apiserver/pkg/authentication/token/cache; apiserver/plugin/pkg/authorizer/webhook/webhook.go.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from fleet.k8s.effects import NodeId

VERBS = {
    "POST": "create",
    "GET": "get",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
FINE_GRAINED = (
    ("/pods", "pods"),
    ("/healthz", "healthz"),
    ("/configz", "configz"),
    ("/runningpods", "pods"),
)
"""With the gate KubeletFineGrainedAuthz: asked for before `proxy`, which means everything."""
SUBRESOURCES = (
    ("/stats", "stats"),
    ("/metrics", "metrics"),
    ("/logs", "log"),
    ("/checkpoint", "checkpoint"),
    ("/statusz", "statusz"),
    ("/flagz", "configz"),
)
FINE_GRAINED_GATE = "KubeletFineGrainedAuthz"
CACHED_MAX = 200_000
"""Reviews of one kind in a process: those of 5,000 nodes and 40 users."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class User(NamedTuple):
    """Who asks. Source: apiserver/pkg/authentication/user, Info."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Access(NamedTuple):
    """What a user wants of a node: one SubjectAccessReview."""

    user: User
    verb: str
    node_name: str
    subresource: str


def subresources(path: str, *, is_fine_grained: bool = True) -> tuple[str, ...]:
    """Return the subresources of `nodes` that a path is one of; any of them is enough.

    Source: GetRequestAttributes.
    """
    found = []
    if is_fine_grained:
        found += [name for prefix, name in FINE_GRAINED if is_subpath(path, prefix)][:1]
    found += [name for prefix, name in SUBRESOURCES if is_subpath(path, prefix)][:1] or ["proxy"]
    return tuple(found)


def is_subpath(path: str, prefix: str) -> bool:
    """Source: isSubpath."""
    return path == prefix or path.startswith(f"{prefix}/")


def verb_of(method: str) -> str:
    """Return the verb of the API for a method of HTTP, "" for one that has none."""
    return VERBS.get(method, "")


def forbidden_text(user: User, verb: str, asked: tuple[str, ...]) -> str:
    """Say no. Source: InstallAuthFilter."""
    shown = " ".join(asked)
    return f"Forbidden (user={user.name}, verb={verb}, resource=nodes, subresource(s)=[{shown}])\n"


def error_text(user: User, verb: str, subresource: str) -> str:
    """Say that it cannot be found out. Source: InstallAuthFilter."""
    return (
        f"Authorization error (user={user.name}, verb={verb}, resource=nodes, "
        f"subresource={subresource})"
    )


def token_key(node: NodeId, token: str) -> tuple[NodeId, bytes]:
    """Return the key under which the review of a token is kept: not the token itself."""
    return node, hashlib.blake2b(token.encode(), digest_size=16).digest()


class ExpiringCache(Generic[K, V]):
    """Answers that are good for a while; the oldest go first when there are too many.

    Nothing is kept of a node that nobody asks: an entry costs about 300 bytes, until it expires.
    """

    __slots__ = ("_entries", "_entries_max")

    def __init__(self, entries_max: int = CACHED_MAX) -> None:
        self._entries: OrderedDict[K, tuple[int, V]] = OrderedDict()
        self._entries_max = entries_max

    def get(self, key: K, now_ns: int) -> V | None:
        """Return what is good still, None if nothing is."""
        found = self._entries.get(key)
        if found is None:
            return None
        if found[0] <= now_ns:
            del self._entries[key]
            return None
        return found[1]

    def put(self, key: K, value: V, ttl_ns: int, now_ns: int) -> None:
        """Keep an answer for `ttl_ns`."""
        self._entries.pop(key, None)
        self._entries[key] = (now_ns + ttl_ns, value)
        while len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def sweep(self, now_ns: int) -> None:
        """Drop what has expired."""
        for key in [key for key, (until_ns, _) in self._entries.items() if until_ns <= now_ns]:
            del self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)
