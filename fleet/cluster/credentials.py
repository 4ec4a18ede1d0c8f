"""Which cluster was named, how to reach it and as whom: kubeconfigs, contexts, in-cluster config.

`kubernetes-asyncio` reads kubeconfigs and runs exec plugins and token refreshes, so that whatever
works with kubectl works here. What the wire engine needs is kept as plain facts, and what it
cannot honour (SOCKS, path prefixes, plain HTTP) is refused before anything is sent.

When credentials are renewed, and what it means if they cannot be:

    about to run out --renewed--> fresh
                     --it fails--> tried again later and later; the old ones serve until they end
    run out, or refused with a 401 --it fails--> requests fail, with the reason

Source: client-go/plugin/pkg/client/auth/exec/exec.go: one plugin at a time (getCreds), a 401 runs
it again unless somebody has (maybeRefreshCreds), each request gets the failure.
Differs: it begins five minutes before the end (the library's EXPIRY_SKEW_PREVENTION_DELAY), where
client-go waits for the end; a plugin that is throttled has time then, and waits between its tries.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import re
import ssl
import sys
import time
import types
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yaml

from fleet.cluster.kubeconfig import proxy_for
from fleet.errors import HIDDEN, FleetError, SetupError, UsageError, hide, masked
from fleet.k8s.addresses import host_port
from fleet.profile.yaml_text import YAMLTextError, read_document
from fleet.wire.sockets.connection import Proxy


@dataclass
class Configuration:
    """What the loaders of `kubernetes_asyncio` leave: its own brings urllib3 along, 1.5 MB."""

    host: str = ""
    ssl_ca_cert: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify_ssl: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None
    api_key: dict[str, str] = field(default_factory=dict)
    refresh_api_key_hook: "Callable[[Configuration], None] | None" = None


def _load_without_models(library: str = "kubernetes_asyncio") -> None:
    """Have `kubernetes_asyncio.config` load alone: it reads kubeconfigs and runs exec plugins.

    Importing the whole library takes 36 MB and 0.7 s for some 800 model classes that fleet never
    uses. So the packages `kubernetes_asyncio` and `.client` are entered as empty ones. A process
    that has the whole library already keeps it.
    """
    if library in sys.modules:
        return
    spec = importlib.util.find_spec(library)
    assert spec is not None, library
    assert spec.submodule_search_locations, spec
    root = spec.submodule_search_locations[0]
    client = types.ModuleType(f"{library}.client")
    for package, path in ((types.ModuleType(library), root), (client, f"{root}/client")):
        package.__path__ = [path]
        sys.modules[package.__name__] = package
    # Named in annotations, and in helpers that are never called.
    vars(client).update(Configuration=Configuration, ApiClient=object)


_load_without_models()

# These find the empty packages.
from kubernetes_asyncio import config as kubeconfigs  # noqa: E402
from kubernetes_asyncio.config.kube_config import KubeConfigLoader, KubeConfigMerger  # noqa: E402

logger = logging.getLogger(__name__)
# It logs what plugins write to stderr, tokens included; the error that it raises says the same.
logging.getLogger("kubernetes_asyncio.config").setLevel(logging.CRITICAL)

IN_CLUSTER_CONTEXT = "in-cluster"
PLUGIN_OUTPUT_MAX = 400
# A plugin may write tokens to stderr: what is long, has letters and digits, and is no path or URL.
_LONG_WORD = re.compile(r"(?<![\w/:-])(?=[\w+=-]*\d)(?=[\w+=-]*[A-Za-z])[\w+=-]{20,}")
DEFAULT_PORTS = {"https": 443}

LOOK_EVERY_S = 30.0  # reading a kubeconfig's token file costs more than sending a request
BACKOFF_FIRST_S = 2.0
BACKOFF_MAX_S = 60.0  # some eight tries in the five minutes before the end
PATIENCE_S = 1.0
"""A request waits so long for a renewal that it could do without; a plugin may ask a person."""
PLUGIN_S_MAX = 60.0  # and so long for one that it needs

# What kubernetes-asyncio raises on kubeconfigs that are YAML but not kubeconfigs.
MALFORMED = (
    kubeconfigs.ConfigException,
    yaml.YAMLError,
    AssertionError,
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSelection:
    """What the user named. Nothing else selects a cluster: not `$KUBECONFIG`, not the default."""

    kubeconfig: Path | None = None
    context: str | None = None
    in_cluster: bool = False

    def __post_init__(self) -> None:
        if self.in_cluster and (self.kubeconfig is not None or self.context is not None):
            raise UsageError("--in-cluster excludes --kubeconfig and --context")

    @property
    def is_named(self) -> bool:
        return self.in_cluster or self.kubeconfig is not None or self.context is not None

    async def load(self, environ: Mapping[str, str] = os.environ) -> "Credentials":
        """Read the credentials; runs an exec plugin but asks no API server.

        Raises UsageError on what the command line or the kubeconfig has wrong, SetupError when a
        plugin fails or the cluster can only be reached in a way that fleet has not.
        """
        assert self.is_named, "only a cluster that was named is loaded"
        if self.in_cluster:
            return _load_in_cluster()
        paths = self.paths(environ)
        shown = ":".join(str(path) for path in paths)
        merger = _read(paths)
        loader = _select(merger, self.context, shown)
        assert loader.current_context is not None, "set_active_context fails rather than leave it"
        name = str(loader.current_context["name"])
        credentials = Credentials(name, shown, Configuration(), loader, environ)
        await credentials.refresh(force=True)
        return credentials

    def paths(self, environ: Mapping[str, str] = os.environ) -> list[Path]:
        """Return the kubeconfigs that count, in their order. Raises UsageError."""
        if self.kubeconfig is not None:
            if not self.kubeconfig.is_file():
                raise UsageError(f"--kubeconfig {self.kubeconfig}: no such file")
            return [self.kubeconfig]
        listed = environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        paths = [Path(name).expanduser() for name in listed.split(os.pathsep) if name]
        found = [path for path in paths if path.is_file()]
        if not found:
            raise UsageError(f"--context {self.context}: no kubeconfig at {listed}")
        return found


@dataclass(eq=False, repr=False)
class Credentials:
    """One cluster's address and the right to speak to it; refreshed for as long as a run lasts."""

    context: str
    source: str  # where it was read, for messages
    _configuration: Configuration
    _loader: KubeConfigLoader | None  # None in a cluster
    _environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    is_verified: bool = True
    proxy: Proxy | None = None
    proxy_url: str = ""
    host: str = ""
    port: int = 0

    @property
    def server(self) -> str:
        """Return the API server's URL, without a path."""
        return self._configuration.host

    @property
    def address(self) -> str:
        """Return `host:port`, for messages."""
        return host_port(self.host, self.port)

    @property
    def route(self) -> str:
        """Return the server's URL, and by which proxy it is reached, for people."""
        by = "" if self.proxy is None else f", by the proxy {self.proxy}"
        return f"https://{self.address}{by}"

    @property
    def server_name(self) -> str:
        """Return the name that the server's certificate must hold."""
        return self._configuration.tls_server_name or self.host

    @property
    def client_certificate(self) -> tuple[str, str] | None:
        """Return the paths of certificate and key, if the user has them."""
        certificate, key = self._configuration.cert_file, self._configuration.key_file
        return (certificate, key or certificate) if certificate else None

    @property
    def ca_file(self) -> str | None:
        """The file with the authorities of the cluster; None for those of this machine."""
        return self._configuration.ssl_ca_cert or None

    def ssl_context(
        self, alpn: tuple[str, ...] = ("h2",), *, with_client_certificate: bool = True
    ) -> ssl.SSLContext:
        """Build a bare context with this cluster's CA alone: 25 KB, where the default takes 826.

        Any certificate of the kubeconfig's bundle is an anchor, as it is to Go. Without a CA the
        system's own are loaded. `with_client_certificate` is off for nodes that have their own.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(list(alpn))
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            if not self.is_verified:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            elif self._configuration.ssl_ca_cert:
                context.load_verify_locations(cafile=self._configuration.ssl_ca_cert)
            else:
                context.load_default_certs()
            if with_client_certificate and self.client_certificate:
                context.load_cert_chain(*self.client_certificate)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"{self.source}: unusable certificate: {error}") from error
        return context

    def authorization(self) -> bytes | None:
        """Return the value of the Authorization header; None with a client certificate alone."""
        value = self._configuration.api_key.get("BearerToken")
        if not value:
            return None
        # Token files end in a newline, which no header may hold.
        return str(value).strip().encode()

    @property
    def expires_s(self) -> float | None:
        """Return when a plugin's credentials run out, in seconds since the epoch, if known."""
        expiry = getattr(self._loader, "exec_plugin_expiry", None)
        return None if expiry is None else float(expiry.timestamp())

    async def refresh(self, *, force: bool = False) -> bool:
        """Renew what is about to expire; return whether it changed. Cheap when nothing is due.

        `force` is for a 401: it also re-runs a plugin that named no expiry. Raises FleetError when
        that fails; what was there stays.
        """
        before = self.secrets()
        if self._loader is None:
            self._refresh_in_cluster(force=force)
        else:
            await self._refresh_kubeconfig(self._loader, force=force)
        if authorization := self.authorization():
            hide(authorization.decode(errors="replace").rpartition(" ")[2])
        self._locate()
        return self.secrets() != before

    def secrets(self) -> tuple[bytes | None, tuple[object, ...]]:
        """Return what changes when credentials are renewed."""
        return (self.authorization(), self.certificate_mark)

    @property
    def certificate_mark(self) -> tuple[object, ...]:
        """Return what another file of the client certificate has otherwise."""
        with contextlib.suppress(OSError):
            if self._configuration.cert_file:
                found = Path(self._configuration.cert_file).stat()
                return (found.st_ino, found.st_mtime_ns)
        return ()

    def _refresh_in_cluster(self, *, force: bool) -> None:
        try:
            if force:
                kubeconfigs.load_incluster_config(self._configuration)  # type: ignore[no-untyped-call]
            # The hook that load_incluster_config leaves re-reads the token once a minute.
            hook = self._configuration.refresh_api_key_hook
            assert hook is not None
            hook(self._configuration)
        except (OSError, kubeconfigs.ConfigException) as error:
            raise SetupError(f"the service account's token cannot be read: {error}") from error

    async def _refresh_kubeconfig(self, loader: KubeConfigLoader, *, force: bool) -> None:
        user = loader._user  # noqa: SLF001 - the loader has no question for the kind of user
        expiry = getattr(loader, "exec_plugin_expiry", None)
        if user is not None and "exec" in user:
            has_run = self.authorization() or self.client_certificate
            if has_run and not force and expiry is None:
                return
            if force and expiry is not None:
                del loader.exec_plugin_expiry
        try:
            await loader.load_and_set(self._configuration)
        except (OSError, aiohttp.ClientError, *MALFORMED) as error:
            if expiry is not None:  # of what we still have
                loader.exec_plugin_expiry = expiry
            if isinstance(error, OSError | aiohttp.ClientError):
                raise SetupError(f"{self.source}: {_credentials_failure(user, error)}") from error
            failure = SetupError if user is not None and "exec" in user else UsageError
            raise failure(f"{self.source}: {_credentials_failure(user, error)}") from error

    def _locate(self) -> None:
        """Take the server's address apart; refuse what the wire engine cannot speak."""
        configuration = self._configuration
        url = urlsplit(self.server)
        try:
            port = url.port
        except ValueError as error:
            raise UsageError(f"{self.source}: server {self.server}: {error}") from error
        if url.scheme not in DEFAULT_PORTS or not url.hostname:
            raise SetupError(
                f"context {self.context}: server {self.server} is not https; "
                "fleet speaks HTTP/2 over TLS only"
            )
        if url.path.strip("/"):
            raise SetupError(
                f"context {self.context}: server {self.server} has a path; fleet needs the API "
                "server itself (with Rancher: the context of the authorized cluster endpoint)"
            )
        self.host = url.hostname
        self.port = port or DEFAULT_PORTS[url.scheme]
        found = proxy_for(self.host, self.port, configuration.proxy or "", self._environ)
        self.proxy, self.proxy_url = found or (None, "")
        if self.is_verified and not configuration.verify_ssl:
            logger.warning(
                "CERTIFICATES ARE NOT VERIFIED: context %s sets insecure-skip-tls-verify; "
                "anybody between here and %s can read its credentials",
                self.context,
                self.address,
            )
        self.is_verified = configuration.verify_ssl


@dataclass(eq=False)
class Renewal:
    """Keeps one cluster's credentials fresh: requests call `renew` before they use them."""

    _credentials: Credentials
    _: KW_ONLY
    now_s: Callable[[], float] = time.monotonic
    wall_s: Callable[[], float] = time.time
    _due_s: float = 0.0
    _failures: int = 0
    _reason: str = ""  # of the last attempt, if it failed
    _attempt: asyncio.Task[None] | None = None
    has_failed: bool = False
    """Somebody needed new credentials and there were none."""

    async def renew(self, *, refused: tuple[object, ...] = ()) -> None:
        """Renew what is about to run out; wait for it only if nothing else may work.

        `refused` are the secrets that were answered with a 401. Raises SetupError when there are no
        credentials that may work.
        """
        if refused and self._credentials.secrets() != refused:
            return  # another caller has renewed them
        expires_s = self._credentials.expires_s
        is_needed = bool(refused) or (expires_s is not None and self.wall_s() >= expires_s)
        is_due = self.now_s() >= self._due_s or (is_needed and not self._failures)
        if self._attempt is None and is_due:
            self._attempt = asyncio.create_task(self._try(force=bool(refused)))
        if self._attempt is not None:
            limit_s = PLUGIN_S_MAX if is_needed else PATIENCE_S
            await asyncio.wait({self._attempt}, timeout=limit_s)
        if not is_needed or (self._attempt is None and not self._reason):
            return
        self.has_failed = True
        raise SetupError(
            f"the credentials of context {self._credentials.context} "
            f"{'are refused' if refused else 'have run out'} and cannot be renewed: "
            f"{self._reason or f'no answer within {PLUGIN_S_MAX:.0f} s'}"
        )

    async def _try(self, *, force: bool) -> None:
        try:
            await self._credentials.refresh(force=force)
        except FleetError as error:
            self._reason = str(error)
            wait_s = min(BACKOFF_FIRST_S * 2.0**self._failures, BACKOFF_MAX_S)
            self._failures += 1
            rest = self._rest()
            logger.warning("credentials: %s; tried again in %.0f s%s", error, wait_s, rest)
        else:
            if self._failures:
                logger.warning("credentials: renewed, after %d failures", self._failures)
            self._reason, self._failures, wait_s = "", 0, LOOK_EVERY_S
        finally:
            self._attempt = None
        self._due_s = self.now_s() + wait_s

    def _rest(self) -> str:
        """Say how long requests can go on."""
        expires_s = self._credentials.expires_s
        if expires_s is None:
            return ""
        rest_s = expires_s - self.wall_s()
        if rest_s > 0:
            return f", the present ones last {rest_s:.0f} s more"
        return "; the present ones have run out, and requests fail"


def _load_in_cluster() -> Credentials:
    configuration = Configuration()
    try:
        kubeconfigs.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    except (OSError, kubeconfigs.ConfigException) as error:
        raise UsageError(f"--in-cluster: not in a pod with a service account: {error}") from error
    credentials = Credentials(IN_CLUSTER_CONTEXT, "in-cluster config", configuration, None)
    credentials._locate()  # noqa: SLF001 - its own constructor function
    return credentials


def _read(paths: list[Path]) -> KubeConfigMerger:
    """Read and merge kubeconfigs as kubectl does."""
    for path in paths:
        try:
            document = read_document(path.read_bytes())
        except OSError as error:
            raise UsageError(f"kubeconfig {path}: {error.strerror}") from error
        except YAMLTextError as error:  # it quotes nothing: a kubeconfig holds keys and tokens
            raise UsageError(f"kubeconfig {path}: not YAML: {error}") from error
        if not isinstance(document, dict) or not isinstance(document.get("clusters"), list):
            raise UsageError(f"kubeconfig {path}: not a kubeconfig, it has no list of clusters")
    try:
        return KubeConfigMerger(os.pathsep.join(str(path) for path in paths))
    except (OSError, *MALFORMED) as error:
        shown = ":".join(str(path) for path in paths)
        raise UsageError(f"kubeconfig {shown}: malformed: {_one_line(error)}") from error


def _select(merger: KubeConfigMerger, context: str | None, shown: str) -> KubeConfigLoader:
    """Choose a context and check what the loader would stumble over later."""
    assert merger.config is not None, shown
    document: dict[str, Any] = merger.config.value
    contexts = {entry["name"]: entry["context"] for entry in _entries(document, "contexts", shown)}
    name = context if context is not None else document.get("current-context")
    if not name:
        raise UsageError(
            f"kubeconfig {shown} has no current context: name one of them with --context: "
            + (", ".join(sorted(contexts)) or "it has none")
        )
    if name not in contexts:
        known = ", ".join(sorted(contexts)) or "none"
        raise UsageError(f"context {name} is not in kubeconfig {shown}; it has: {known}")
    _check_user(document, contexts[name], f"kubeconfig {shown}: context {name}")
    try:
        return KubeConfigLoader(
            config_dict=merger.config,
            active_context=name,
            config_base_path=None,
            # A rotated OIDC refresh token that is not kept logs the user out of kubectl.
            config_persister=lambda _config: merger.save_changes(),
        )
    except MALFORMED as error:
        raise UsageError(f"kubeconfig {shown}: {_one_line(error)}") from error


def _entries(document: Mapping[str, Any], kind: str, shown: str) -> list[Any]:
    """Return contexts or users, each with a name and a mapping under its kind."""
    inner = kind.removesuffix("s")
    entries = [getattr(entry, "value", entry) for entry in document.get(kind) or []]
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get(inner) or {}, dict):
            raise UsageError(f"kubeconfig {shown}: malformed entry in {kind}")
        if not isinstance(entry.get("name"), str) or inner not in entry:
            raise UsageError(f"kubeconfig {shown}: an entry in {kind} lacks name or {inner}")
    return entries


def _check_user(document: Mapping[str, Any], context: Mapping[str, Any], where: str) -> None:
    users = {entry["name"]: entry["user"] or {} for entry in _entries(document, "users", where)}
    name = (context or {}).get("user")
    if not name:
        raise UsageError(f"{where} names no user")
    if name not in users:
        raise UsageError(f"{where} names user {name}, which is not there")
    impersonated = [key for key in users[name] if key == "as" or key.startswith("as-")]
    if impersonated:
        # The loader ignores it; going on would act with more rights than the file gives.
        raise UsageError(
            f"{where}: user {name} impersonates another ({', '.join(impersonated)}), which fleet "
            "cannot combine with impersonating nodes"
        )


def _credentials_failure(user: Any, error: Exception) -> str:
    if user is not None and "exec" in user:
        output = _LONG_WORD.sub(HIDDEN, masked(_one_line(error)))
        if len(output) > PLUGIN_OUTPUT_MAX:
            output = f"...{output[-PLUGIN_OUTPUT_MAX:]}"
        return f"credential plugin {user['exec'].safe_get('command')} failed: {output}"
    return _one_line(error)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
