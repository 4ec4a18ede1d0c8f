"""fleet's simulated container runtime behind CRI, so that a real kubelet lives in the same world.

Here: what containerd would answer, from `fleet.runtime` and the declared behaviours, in real time.
Not here: the kubelet itself (`real_kubelet.py`), what is compared.
"""
