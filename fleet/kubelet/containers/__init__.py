"""The kubelet's containers: kuberuntime, probes, images, allocated resources, what they use.

Here: what is asked of the container runtime. Not here: the runtime itself (`runtime`).
"""
