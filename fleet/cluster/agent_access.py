"""What node agents may do: their roles on a local control plane, their rights on any other.

An agent acts as a user of its own, most often a ServiceAccount, which fleet impersonates by its
name: the server adds the groups. The account itself need not be there.
Source: apiserver/pkg/endpoints/filters/impersonation/mode.go, serviceAccountImpersonationMode.
"""

import asyncio
import time
from collections.abc import Iterable

from fleet.cluster.api_client import Api, Json, each, expect
from fleet.cluster.identity import (
    AUTHENTICATION,
    Identity,
    Impersonation,
    Permission,
    check_permissions,
    impersonation_headers,
    is_allowed,
    who_am_i,
)
from fleet.errors import DeniedError, SetupError
from fleet.k8s import roles
from fleet.k8s.well_known import BINDINGS, NODE_USER, ROLES
from fleet.profile.agent_behavior import NODE, SERVICE_ACCOUNT_USER, AgentModel
from fleet.profile.loader import NodeMix
from fleet.profile.node_model import NodeModel
from fleet.profile.settings import IdentityMode

NAME = "fleet:agent:"
MANAGED_BY, MANAGER = "app.kubernetes.io/managed-by", "fleet"
AUTHORIZATION = "authorization.k8s.io"
KNOWN_MAX_S = 60.0  # how long the authorizer of a local control plane may take to know of new roles
LOOK_AGAIN_S = 0.2  # the authorizer learns of a role by a watch of its own


def agents_of(models: Iterable[NodeModel]) -> tuple[AgentModel, ...]:
    """Return the agents of all profiles of a run, each once."""
    return tuple({agent.name: agent for model in models for agent in model.agents}.values())


def permissions_of(agent: AgentModel) -> list[Permission]:
    """Return what an agent's user must be allowed."""
    found = []
    for rule in agent.rules():
        resource, _, subresource = rule.resource.partition("/")
        found += [
            Permission(verb, rule.group, resource, subresource, rule.namespace)
            for verb in rule.verbs
        ]
    return found


def impersonation_of(
    agents: Iterable[AgentModel], impersonation: Impersonation
) -> list[Permission]:
    """Return what fleet's user needs to be the agents; by the old grant nodes are agents too."""
    found = []
    for agent in agents:
        if impersonation is not Impersonation.USER_AND_GROUP:
            found += constrained(agent)
        elif not agent.user.startswith(NODE_USER):
            found.append(_old_grant(agent))
    return list(dict.fromkeys(found))


def constrained(agent: AgentModel) -> list[Permission]:
    """Return the rights to be an agent and, verb by verb, to do as it what it does.

    The last are what `check_agents` asks. Source: mode.go, newConstrainedImpersonationMode.
    """
    reviews = [Permission("create", AUTHENTICATION, "selfsubjectreviews")]
    if agent.user.startswith(NODE_USER):
        mode, who = "arbitrary-node", Permission("", AUTHENTICATION, "nodes")
    else:
        reviews.append(Permission("create", AUTHORIZATION, "selfsubjectaccessreviews"))
        mode, who = "user-info", Permission("", AUTHENTICATION, "users", name=agent.user)
        if agent.user.startswith(SERVICE_ACCOUNT_USER):
            mode, who = "serviceaccount", _old_grant(agent)._replace(group=AUTHENTICATION)
    return [
        who._replace(verb=f"impersonate:{mode}"),
        *(
            each._replace(verb=f"impersonate-on:{mode}:{each.verb}")
            for each in (*permissions_of(agent), *reviews)
        ),
    ]


def _old_grant(agent: AgentModel) -> Permission:
    """Return the right to be an agent, whatever it does."""
    if agent.user.startswith(SERVICE_ACCOUNT_USER):
        namespace, name = _service_account(agent.user)
        return Permission("impersonate", "", "serviceaccounts", namespace=namespace, name=name)
    return Permission("impersonate", "", "users", name=agent.user)


def manifests(agents: Iterable[AgentModel]) -> list[Json]:
    """Return a ClusterRole and its binding for each agent but those that act as their node.

    A right in one namespace is granted in all: the roles are for clusters that are fleet's own,
    and a start for others.
    """
    found: list[Json] = []
    for agent in agents:
        if agent.user.startswith(NODE_USER):
            continue
        name = NAME + agent.name
        rules = [
            {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)}
            for rule in agent.rules()
        ]
        whom = roles.subject(agent.user)
        if agent.user.startswith(SERVICE_ACCOUNT_USER):
            namespace, account = _service_account(agent.user)
            whom = roles.subject(account, namespace)
        found += [roles.role(name, rules), roles.binding(name, name, whom)]
    for made in found:
        made["metadata"]["labels"] = {MANAGED_BY: MANAGER}
    return found


def _service_account(user: str) -> tuple[str, str]:
    """Return namespace and name of the account that a user is."""
    namespace, _, name = user.removeprefix(SERVICE_ACCOUNT_USER).partition(":")
    return namespace, name


async def prepare_agents(
    api: Api,
    identity: Identity,
    mix: NodeMix,
    node: str,
    *,
    is_local: bool,
) -> dict[str, DeniedError]:
    """Grant agents their rights on a local control plane, and see that they have them.

    On another cluster an optional agent without its rights is left out: these are returned with
    what they lack. Raises SetupError for any other agent.
    """
    agents = agents_of(mix.models)
    if is_local:
        await grant(api, agents)
        await _await_rights(api, identity, agents, node)
        return {}
    left_out = {}
    for agent in agents:
        if agent.optional:
            try:
                await check_agents(api, identity, [agent], node)
            except DeniedError as error:
                mix.leave_out(agent.name)
                left_out[agent.name] = error
    await check_agents(api, identity, [each for each in agents if not each.optional], node)
    return left_out


async def _await_rights(
    api: Api, identity: Identity, agents: Iterable[AgentModel], node: str
) -> None:
    """Wait until the server's authorizer, which reads roles by a watch, knows of new ones."""
    deadline = time.monotonic() + KNOWN_MAX_S
    while True:
        try:
            return await check_agents(api, identity, agents, node)
        except SetupError:
            if time.monotonic() >= deadline:
                raise
        await asyncio.sleep(LOOK_AGAIN_S)


async def grant(api: Api, agents: Iterable[AgentModel]) -> None:
    """Create or renew the roles of agents. Raises SetupError if that does not work."""
    for manifest in manifests(agents):
        name = manifest["metadata"]["name"]
        path = ROLES if manifest["kind"] == "ClusterRole" else BINDINGS
        answer = await api.request("POST", path, body=manifest)
        if answer.code == 409:
            there = expect(await api.request("GET", f"{path}/{name}"), f"cannot read {name}")
            before = there["metadata"]
            if (before.get("labels") or {}).get(MANAGED_BY) != MANAGER:
                raise SetupError(
                    f"the {manifest['kind']} {name} is not one that fleet made: delete or rename "
                    "it, or the agent"
                )
            if all(there.get(key) == value for key, value in manifest.items() if key != "metadata"):
                continue  # of an earlier run, or of one at the same time
            metadata = {**manifest["metadata"], "resourceVersion": before["resourceVersion"]}
            body = {**manifest, "metadata": metadata}
            answer = await api.request("PUT", f"{path}/{name}", body=body)
        expect(answer, f"cannot create the {manifest['kind']} {name}")


async def check_agents(
    api: Api, identity: Identity, agents: Iterable[AgentModel], node: str
) -> None:
    """Ask the server whether we may be the agents, of one node, and they may do what they do.

    Raises SetupError with what is missing, before anything is created.
    """
    if identity.mode is IdentityMode.SHARED:
        await check_permissions(api, [each for agent in agents for each in permissions_of(agent)])
        return

    async def check(agent: AgentModel) -> None:
        user = agent.user.replace(NODE.decode(), node)
        headers = impersonation_headers(user)
        is_node = agent.user.startswith(NODE_USER)
        if agent.optional and not is_node and not await is_allowed(api, _old_grant(agent)):
            # Asked, not tried: what is optional leaves no refusal in the server's audit log.
            await check_permissions(api, constrained(agent))
        answer = await who_am_i(api, headers)
        if not answer.ok:
            raise DeniedError(
                f"agent {agent.name}: no permission to impersonate {user}: {answer.message}"
            )
        try:
            if is_node:  # the node authorizer knows what it may
                has_old = identity.impersonation is Impersonation.USER_AND_GROUP
            else:
                await check_permissions(api, permissions_of(agent), headers)
                has_old = await is_allowed(api, _old_grant(agent))
            if not has_old:
                await check_permissions(api, constrained(agent)[1:])
        except DeniedError as error:
            raise DeniedError(f"agent {agent.name} as {user}: {error}") from error

    await each(list(agents), check)
