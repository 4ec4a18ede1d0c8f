"""The addresses of a machine or a pod, of one family or of both: "10.0.0.5" or "10.0.0.5,fd00::5".

They are one text in their order, as the downward API shows `status.podIPs`: so a second family
costs nothing where there is none. Ranges are joined alike.
"""

import ipaddress


def each_of(texts: str) -> list[str]:
    """Return the addresses or ranges one by one."""
    return texts.split(",") if texts else []


def first_of(texts: str) -> str:
    """Return the primary one, "" if there is none."""
    return texts.partition(",")[0]


def host_port(host: str, port: int) -> str:
    """Join an address or a name with a port. Source: Go, net.JoinHostPort."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_ipv6(text: str) -> bool:
    """Return whether an address or a range is of IPv6."""
    return ":" in text


def by_family(ips: str, node_ips: str) -> str:
    """Return the first address of the node's own family, then the first of the other one.

    Source: pkg/kubelet/kubelet_pods.go, sortPodIPs.
    """
    if "," not in ips:
        return ips
    family = is_ipv6(first_of(node_ips))
    listed = each_of(ips)
    own = [ip for ip in listed if is_ipv6(ip) is family]
    other = [ip for ip in listed if is_ipv6(ip) is not family]
    return ",".join((*own[:1], *other[:1]))


def node_ips(listed: list[str]) -> str:
    """Return the first address of a Node, and its first one of the other family.

    Source: pkg/util/node/node.go, GetNodeHostIPs, of InternalIPs and then ExternalIPs.
    """
    ips = [ip for ip in listed if is_ip(ip)]
    return by_family(",".join(ips), ips[0]) if ips else ""


def is_ip(text: str) -> bool:
    """Return whether a text is an address, of either family."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def with_second(ips: str, node_ips: str) -> str:
    """Return the addresses of a pod in its node's network: once it has some, they stay.

    Only a node that becomes one of two families adds the second one.
    Source: pkg/kubelet/kubelet_pods.go, generateAPIPodStatus.
    """
    if not ips:
        return node_ips
    second = node_ips.partition(",")[2]
    if not second or "," in ips or is_ipv6(second) is is_ipv6(ips):
        return ips
    return f"{ips},{second}"
