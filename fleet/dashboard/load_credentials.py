"""Who the API users next to the nodes are: a kubeconfig or the pod's own service account.

For plain Locust workers, which run on gevent and not on fleet's loop: everything here waits.
Source: k8s.io/client-go/plugin/pkg/client/auth/exec/exec.go, refreshCredsLocked;
k8s.io/client-go/rest/config.go, InClusterConfig.
"""

import base64
import datetime as dt
import json
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fleet.cluster.kubeconfig import current_context, only_context, proxy_for
from fleet.errors import SetupError, UsageError
from fleet.profile.secret_variables import without_secrets

KUBECONFIG = "FLEET_LOAD_KUBECONFIG"
NAMESPACE = "FLEET_LOAD_NAMESPACE"
"""Variable with the namespace that was made for the users; without they make one."""
RUN = "FLEET_LOAD_RUN"
"""Variable with the run on whose nodes their pods are; without on those of any fleet."""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_LEFT_S = 60.0
"""A token is asked for again so long before it ends, and one from a file that often."""
PLUGIN_S_MAX = 60.0

Json = dict[str, Any]


class LoadCredentials:
    """Server, authority and credentials: a certificate, a token, its file, or an exec plugin."""

    def __init__(self, cluster: Json, user: Json) -> None:
        self.server: str = cluster["server"]
        self._cluster = cluster
        self._user = user
        self._token = ""
        self._until_s = 0.0
        self._context: ssl.SSLContext | None = None

    @classmethod
    def from_kubeconfig(cls, paths: list[Path]) -> "LoadCredentials":
        """Read the current context. Raises UsageError."""
        shown = os.pathsep.join(map(str, paths))
        try:
            found = only_context(paths, current_context(paths))
        except (OSError, KeyError) as error:
            raise UsageError(f"{shown} is no kubeconfig for the load: {error}") from error
        user = found["users"][0]["user"] if found["users"] else {}
        return cls(found["clusters"][0]["cluster"], user)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "LoadCredentials":
        """Read `$FLEET_LOAD_KUBECONFIG`, else `$KUBECONFIG`, else be the pod's service account.

        Raises UsageError if there is nothing of these.
        """
        named = environ.get(KUBECONFIG) or environ.get("KUBECONFIG")
        if named:
            return cls.from_kubeconfig([Path(each) for each in named.split(os.pathsep) if each])
        host, port = (environ.get(f"KUBERNETES_SERVICE_{key}") for key in ("HOST", "PORT"))
        if not host or not (SERVICE_ACCOUNT / "token").exists():
            raise UsageError(f"set {KUBECONFIG} to the kubeconfig of the API users")
        host = f"[{host}]" if ":" in host else host
        cluster = {
            "server": f"https://{host}:{port}",
            "certificate-authority": str(SERVICE_ACCOUNT / "ca.crt"),
        }
        return cls(cluster, {"tokenFile": str(SERVICE_ACCOUNT / "token")})

    def proxy(self, environ: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
        """Return host and port of the proxy that leads to the server, None for a direct way.

        Raises SetupError for one that Locust's client does not speak to.
        """
        url = urlsplit(self.server)
        proxy_url = self._cluster.get("proxy-url") or ""
        found = proxy_for(url.hostname or "", url.port or 443, proxy_url, environ)
        if found is None:
            return None
        proxy, _ = found
        if proxy.authorization:
            raise SetupError(f"the proxy {proxy} asks for a password, which API users cannot give")
        return proxy.host, proxy.port

    def ssl_context(self) -> ssl.SSLContext:
        """Return a context that trusts the cluster's authority and presents the certificate."""
        if self._context is None:
            authority = _content(self._cluster, "certificate-authority")
            context = ssl.create_default_context(cadata=authority.decode() if authority else None)
            if self._cluster.get("insecure-skip-tls-verify"):
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            certificate = _content(self._user, "client-certificate")
            if certificate:
                with tempfile.NamedTemporaryFile() as pair:
                    pair.write(certificate + b"\n" + _content(self._user, "client-key"))
                    pair.flush()
                    context.load_cert_chain(pair.name)
            self._context = context
        return self._context

    def authorization(self) -> str:
        """Return the Authorization header, "" if the certificate says who we are."""
        user = self._user
        if user.get("token"):
            return f"Bearer {user['token']}"
        if time.time() > self._until_s - TOKEN_LEFT_S:
            if "tokenFile" in user:
                self._token = Path(user["tokenFile"]).read_text(encoding="utf-8").strip()
                self._until_s = time.time() + 2 * TOKEN_LEFT_S
            elif "exec" in user:
                self._ask_plugin(user["exec"])
        return f"Bearer {self._token}" if self._token else ""

    def _ask_plugin(self, plugin: Json) -> None:
        """Take the token that the user's plugin prints, until it says that it ends."""
        asked = {
            "apiVersion": plugin["apiVersion"],
            "kind": "ExecCredential",
            "spec": {"interactive": False},
        }
        extra = {each["name"]: each["value"] for each in plugin.get("env") or ()}
        done = subprocess.run(  # noqa: S603 - the user's own kubeconfig names it
            [plugin["command"], *(plugin.get("args") or ())],
            check=True,
            capture_output=True,
            env={**without_secrets(os.environ), **extra, "KUBERNETES_EXEC_INFO": json.dumps(asked)},
            timeout=PLUGIN_S_MAX,
        )
        status = json.loads(done.stdout)["status"]
        self._token = status["token"]
        ends = status.get("expirationTimestamp")
        self._until_s = dt.datetime.fromisoformat(ends).timestamp() if ends else float("inf")


def _content(entry: Json, key: str) -> bytes:
    """Return what an entry holds itself or in a file; b"" if it has neither."""
    if entry.get(f"{key}-data"):
        return base64.b64decode(entry[f"{key}-data"])
    return Path(entry[key]).read_bytes() if entry.get(key) else b""
