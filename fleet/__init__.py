"""fleet: thousands of virtual kubelets in one process, on a real control plane."""

__version__ = "0.1.0"

KUBERNETES_VERSION = "v1.37.2"
"""The release whose kubelet is emulated and whose control plane is built."""
