"""The kubelet's Node: registration, status, Lease, CSINode, certificates, runtime state, shutdown.

Here: what a kubelet says of its machine. Not here: its pods.
"""
