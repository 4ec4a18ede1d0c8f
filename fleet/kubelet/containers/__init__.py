"""The kubelet's containers: kuberuntime, probes, images.

Here: what is asked of the container runtime. Not here: the runtime itself (`runtime`).
"""
