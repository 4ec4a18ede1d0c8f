"""What nodes with certificates of their own need before they have them, for one run.

    credentials   --bootstrap-token, --bootstrap-kubeconfig, or a token made on a local cluster
    approval      by the controller-manager, or by fleet with --approve-csrs
    a directory   --cert-dir, else the local control plane's, or one for each cluster in the
                  user's state directory

Source: cmd/kubeadm/app/phases/bootstraptoken/node/token.go; cluster-bootstrap/token/api.
"""

import asyncio
import contextlib
import datetime as dt
import logging
import os
import secrets
import ssl
import string
from collections.abc import AsyncIterator
from typing import NamedTuple

import orjson

from fleet.background import Background
from fleet.cluster.api_client import CONCURRENCY, Api, Cluster, expect
from fleet.cluster.credentials import ClusterSelection
from fleet.controlplane import ControlPlaneInfo, Layout, state_home
from fleet.errors import FleetError, UsageError, hide
from fleet.host.certificate_store import CertificateStore
from fleet.host.transports import endpoint_of
from fleet.profile.secret_variables import BOOTSTRAP_TOKEN_VARIABLE
from fleet.profile.settings import IdentityMode, Settings
from fleet.wire.sockets.transport import Endpoint

SECRETS = "/api/v1/namespaces/kube-system/secrets"
SIGNING_REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
TOKEN_LIFE = dt.timedelta(days=30)  # should the run be killed
DIRECTORY_VARIABLE = "FLEET_CERT_DIR"
TOKEN_LETTERS = string.ascii_lowercase + string.digits
ID_LENGTH, SECRET_LENGTH = 6, 16

log = logging.getLogger(__name__)


class Bootstrap(NamedTuple):
    """How nodes ask for their first certificate, and where all of them are kept."""

    endpoint: Endpoint
    context: ssl.SSLContext
    authorization: bytes | None
    store: CertificateStore
    approver: "Approver | None"


class Approver:
    """Approves requests that nodes of this process have made, and no others."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()

    def approve(self, body: bytes) -> None:
        """Take a request as the server returned it to its node."""
        self._waiting.put_nowait(body)

    def start(self, background: Background) -> None:
        """Begin to approve; a request that cannot be read harms no other."""
        for _ in range(CONCURRENCY):
            background.keep("the approval of certificates", self._work)

    async def _work(self) -> None:
        while True:
            request = orjson.loads(await self._waiting.get())
            name = request["metadata"]["name"]
            del request["metadata"]["resourceVersion"]  # the approver beside us may have written
            approved = {
                "type": "Approved",
                "status": "True",
                "reason": "ApprovedByFleet",
                "message": "One of fleet's own nodes asked for it.",
            }
            request["status"] = {"conditions": [approved]}
            path = f"{SIGNING_REQUESTS}/{name}/approval"
            try:
                expect(await self._api.request("PUT", path, body=request), f"no approval of {name}")
            except FleetError as error:
                log.warning("%s", error)


@contextlib.asynccontextmanager
async def open_bootstrap(
    settings: Settings,
    cluster: Cluster,
    cluster_uid: str,
    local: ControlPlaneInfo | None,
    background: Background,
) -> AsyncIterator[Bootstrap | None]:
    """Provide what bootstrapping needs; None unless nodes have certificates of their own.

    Raises UsageError for an unusable kubeconfig, SetupError if the directory cannot be written.
    """
    if settings.identity is not IdentityMode.CSR:
        yield None
        return
    directory = state_home() / "certificates" / cluster_uid
    if local is not None:
        directory = Layout(local.directory).certificates
    directory = (settings.cert_dir or directory).absolute()
    store = CertificateStore(directory, cluster_uid)
    approver = Approver(cluster.api("approve")) if settings.approve_csrs else None
    async with contextlib.AsyncExitStack() as stack:
        if settings.bootstrap_kubeconfig is not None:
            try:
                user = await ClusterSelection(kubeconfig=settings.bootstrap_kubeconfig).load()
            except UsageError as error:
                text = str(error).replace("--kubeconfig", "--bootstrap-kubeconfig", 1)
                raise UsageError(text) from error
            endpoint = endpoint_of(user)
            context, authorization = user.ssl_context(), user.authorization()
        else:
            user = cluster.credentials
            endpoint = endpoint_of(user)
            context = user.ssl_context(with_client_certificate=False)
            token = settings.bootstrap_token.get_secret_value()
            if not token:
                assert not settings.names_cluster, "checked by Settings"
                token = await stack.enter_async_context(own_token(cluster.api("bootstrap")))
            hide(token)
            authorization = f"Bearer {token}".encode()
            if settings.processes > 1:
                os.environ[BOOTSTRAP_TOKEN_VARIABLE] = token
        if settings.processes > 1:  # the other processes inherit it
            os.environ[DIRECTORY_VARIABLE] = str(directory)
        if approver is not None:
            approver.start(background)
        yield Bootstrap(endpoint, context, authorization, store, approver)


@contextlib.asynccontextmanager
async def own_token(api: Api) -> AsyncIterator[str]:
    """Create a bootstrap token that lives as long as the run. Raises SetupError."""
    number, secret = (
        "".join(secrets.choice(TOKEN_LETTERS) for _ in range(length))
        for length in (ID_LENGTH, SECRET_LENGTH)
    )
    name = f"bootstrap-token-{number}"
    body = {
        "metadata": {"name": name},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "description": "Nodes of a fleet join with it, until its run is over.",
            "token-id": number,
            "token-secret": secret,
            "expiration": (dt.datetime.now(dt.UTC) + TOKEN_LIFE).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "usage-bootstrap-authentication": "true",
        },
    }
    answer = await api.request("POST", SECRETS, body=body)
    made = expect(answer, f"cannot create the Secret {name}")
    try:
        yield f"{number}.{secret}"
    finally:
        with contextlib.suppress(FleetError):
            options = {"preconditions": {"uid": made["metadata"]["uid"]}}
            await api.request("DELETE", f"{SECRETS}/{name}", body=options)
