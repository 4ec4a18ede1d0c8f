"""What the controllers of a cloud make of the providerIDs of fleet's nodes.

Source: k8s.io/cloud-provider/controllers/nodelifecycle/node_lifecycle_controller.go, MonitorNodes,
ensureNodeExistsByProviderID: of each Node that is not Ready, every 5 s.
"""

from collections import Counter
from collections.abc import Iterable

from fleet.cluster.ownership import PROVIDER

LOCAL = frozenset({"", "kind", "k3s", "minikube", "kwok"})
"""Schemes behind which there is no cloud that looks machines up."""
CLOUDS = {
    "aws": "AWS",
    "azure": "Azure",
    "gce": "Google Cloud",
    "openstack": "OpenStack",
    "vsphere": "vSphere",
    "digitalocean": "DigitalOcean",
    "hcloud": "Hetzner Cloud",
    "linode": "Linode",
    "oci": "Oracle Cloud",
    "ibm": "IBM Cloud",
}


def scheme_of(provider_id: str) -> str:
    """Return the scheme of a providerID, "" for none."""
    return provider_id.partition("://")[0] if "://" in provider_id else ""


def cloud_of(provider_ids: Iterable[str]) -> str:
    """Return the scheme that most of some machines have, "" if they are of no cloud."""
    found = Counter(map(scheme_of, provider_ids))
    own = scheme_of(PROVIDER)
    clouds = [each for each, _ in found.most_common() if each not in LOCAL and each != own]
    return clouds[0] if clouds else ""


def provider_lines(cloud: str, templates: Iterable[str], nodes: int) -> list[str]:
    """Return what the controllers of the cloud will make of each kind of providerID, if it is one.

    `templates` are those of the profiles, "" for none.
    """
    if not cloud:
        return []
    name = CLOUDS.get(cloud, cloud)
    return [_line(cloud, name, each, nodes) for each in dict.fromkeys(templates)]


def _line(cloud: str, name: str, template: str, nodes: int) -> str:
    if not template:
        return (
            f"- providerID: none. The cloud controller of {name} looks a Node that is not Ready up "
            "by its name, finds no machine, and deletes the Node for good, also while it starts."
        )
    if scheme_of(template) == cloud:
        return (
            f"- providerID: {template}. It looks like a machine of {name}: of a Node that is not "
            "Ready its cloud controller finds no machine, and deletes the Node. Controllers and "
            "autoscalers may act on a real machine that has such an ID."
        )
    return (
        f"- providerID: {template}. The controllers of {name} cannot read it: they leave the Node, "
        f"but some try again without end, here for {nodes:,} nodes (a tagging controller may "
        "become the largest load of the cluster). --provider-id none leaves it out."
    )
