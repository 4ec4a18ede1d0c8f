"""The kubelet's volumes: mounting, claims, and the objects that pods refer to.

Here: what a pod waits for before its containers start. Not here: CSI registration (`node`).
"""
