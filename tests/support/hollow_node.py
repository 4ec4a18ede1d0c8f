"""kubemark's hollow kubelet: real kubelet code, a process a node."""

from pathlib import Path


def hollow_kubelet(
    kubemark: Path, name: str, kubeconfig: Path, directory: Path, ports: tuple[int, int]
) -> tuple[str, ...]:
    """Return the command of one; `ports` are the kubelet's and its read-only one.

    It makes a directory of its own in $TMPDIR and leaves it.
    """
    port, read_only_port = ports
    return (
        *(str(kubemark), "--morph=kubelet", f"--name={name}", f"--kubeconfig={kubeconfig}"),
        *(f"--kubelet-port={port}", f"--kubelet-read-only-port={read_only_port}"),
        *("--kube-api-qps=50", "--kube-api-burst=100"),  # a kubelet's; kubemark has 10 and 20
        *("--use-host-image-service=false", f"--cert-dir={directory}"),
    )
