"""What node agents may do: their roles on a local control plane, their rights on any other.

An agent acts as a user of its own, most often a ServiceAccount, which fleet impersonates by its
name: the server adds the groups. The account itself need not be there.
Source: apiserver/pkg/endpoints/filters/impersonation/mode.go, serviceAccountImpersonationMode.
"""

from collections.abc import Iterable

from fleet.agent_behavior import NODE, NODE_USER, SERVICE_ACCOUNT_USER, AgentModel
from fleet.api_client import Api, Json, each, expect
from fleet.config import IdentityMode, NodeModel
from fleet.errors import SetupError
from fleet.identity import (
    Identity,
    Permission,
    check_permissions,
    impersonation_headers,
    who_am_i,
)

RBAC = "rbac.authorization.k8s.io"
ROLES = f"/apis/{RBAC}/v1/clusterroles"
BINDINGS = f"/apis/{RBAC}/v1/clusterrolebindings"
NAME = "fleet:agent:"
ANY_NODE = "any"


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


def impersonation_of(agents: Iterable[AgentModel]) -> list[Permission]:
    """Return what fleet's user needs to be the agents; who may be a node may be its agents."""
    found = []
    for agent in agents:
        if agent.user.startswith(SERVICE_ACCOUNT_USER):
            namespace, name = _service_account(agent.user)
            found.append(
                Permission("impersonate", "", "serviceaccounts", namespace=namespace, name=name)
            )
        elif not agent.user.startswith(NODE_USER):
            found.append(Permission("impersonate", "", "users", name=agent.user))
    return found


def manifests(agents: Iterable[AgentModel]) -> list[Json]:
    """Return a ClusterRole and its binding for each agent but those that act as their node.

    A right in one namespace is granted in all: the roles are for clusters that are fleet's own,
    and a start for others.
    """
    found: list[Json] = []
    for agent in agents:
        if agent.user.startswith(NODE_USER):
            continue
        name = {"name": NAME + agent.name}
        rules = [
            {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)}
            for rule in agent.rules()
        ]
        role = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": name}
        found.append({**role, "rules": rules})
        found.append(
            {
                "apiVersion": f"{RBAC}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": name,
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name["name"]},
                "subjects": [_subject(agent.user)],
            }
        )
    return found


def _service_account(user: str) -> tuple[str, str]:
    """Return namespace and name of the account that a user is."""
    namespace, _, name = user.removeprefix(SERVICE_ACCOUNT_USER).partition(":")
    return namespace, name


def _subject(user: str) -> Json:
    if user.startswith(SERVICE_ACCOUNT_USER):
        namespace, name = _service_account(user)
        return {"kind": "ServiceAccount", "namespace": namespace, "name": name}
    return {"kind": "User", "apiGroup": RBAC, "name": user}


async def prepare_agents(
    api: Api, identity: Identity, models: Iterable[NodeModel], *, is_local: bool
) -> None:
    """Grant agents their rights on a local control plane, and see that they have them."""
    agents = agents_of(models)
    if is_local:
        await grant(api, agents)
    await check_agents(api, identity, agents)


async def grant(api: Api, agents: Iterable[AgentModel]) -> None:
    """Create or renew the roles of agents. Raises SetupError if that does not work."""
    for manifest in manifests(agents):
        name = manifest["metadata"]["name"]
        path = ROLES if manifest["kind"] == "ClusterRole" else BINDINGS
        answer = await api.request("POST", path, body=manifest)
        if answer.code == 409:
            answer = await api.request("PUT", f"{path}/{name}", body=manifest)
        expect(answer, f"cannot create the {manifest['kind']} {name}")


async def check_agents(api: Api, identity: Identity, agents: Iterable[AgentModel]) -> None:
    """Ask the server whether we may be the agents, and they may do what they do.

    Raises SetupError with what is missing, before anything is created.
    """
    if identity.mode is IdentityMode.SHARED:
        await check_permissions(api, [each for agent in agents for each in permissions_of(agent)])
        return

    async def check(agent: AgentModel) -> None:
        user = agent.user.replace(NODE.decode(), ANY_NODE)
        headers = impersonation_headers(user)
        answer = await who_am_i(api, headers)
        if not answer.ok:
            raise SetupError(
                f"agent {agent.name}: no permission to impersonate {user}: {answer.message}; "
                "see docs/how-to/agents.md"
            )
        if agent.user.startswith(NODE_USER):
            return  # the node authorizer knows what it may
        try:
            await check_permissions(api, permissions_of(agent), headers)
        except SetupError as error:
            raise SetupError(f"agent {agent.name} as {user}: {error}") from error

    await each(list(agents), check)
