"""A Deployment through the scheduler: until all of its pods run, and until all are gone.

Unlike bound pods these need each controller: that of Deployments makes a ReplicaSet, that of
ReplicaSets the pods, the scheduler binds them, and at the end the garbage collector takes them.
"""

import asyncio
import ssl

import aiohttp

from .inside import (
    NAMESPACE,
    POD_SPEC,
    Json,
    Phases,
    follow,
    make_namespace,
    session_of,
    until,
)

NAME = "deployed"
LABELS = {"app": NAME}
REQUESTS = {"cpu": "1m", "memory": "1Mi"}
"""Too little to fill a node: no tool's nodes are too small."""
PAUSE_S = 5.0


def manifest(replicas: int) -> Json:
    """Return the Deployment, the same for all tools."""
    containers = [{**each, "resources": {"requests": REQUESTS}} for each in POD_SPEC["containers"]]
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": containers}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            "template": template,
        },
    }


async def deployment(url: str, context: ssl.SSLContext, replicas: int) -> Json:
    """Create and delete a Deployment in a namespace without pods.

    Return how many seconds it took from the request until all pods were Running, and gone, as a
    watch shows it; None: not within DEADLINE_S.
    """
    async with session_of(context) as session:
        await make_namespace(session, url)
        phases = Phases()
        path = f"{url}/api/v1/namespaces/{NAMESPACE}/pods"
        watching = asyncio.create_task(follow(session, path, phases.see))
        try:
            return await _come_and_go(session, url, phases, replicas)
        finally:
            watching.cancel()


async def _come_and_go(
    session: aiohttp.ClientSession, url: str, phases: Phases, replicas: int
) -> Json:
    path = f"{url}/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    async with session.post(path, json=manifest(replicas)) as response:
        assert response.status == 201, await response.text()
    running_s = await until(lambda: phases.running == replicas)
    await asyncio.sleep(PAUSE_S)
    options = {"propagationPolicy": "Background"}
    async with session.delete(f"{path}/{NAME}", json=options) as response:
        assert response.status == 200, await response.text()
    return {
        "replicas": replicas,
        "deployment_running_s": running_s,
        "deployment_gone_s": await until(lambda: not phases.states),
    }
