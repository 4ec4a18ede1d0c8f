"""Simulated storage alongside the nodes: the controllers of CSI drivers.

Here: provisioner, attacher and resizer, as sidecars of a driver do it.
Not here: what a node does with a volume (`kubelet.volumes`).
"""
