"""The simulated container runtime: containers, images, addresses, and what commands do.

Here: a runtime as a kubelet sees it through CRI. Not here: what users declare (`profile`).
"""
