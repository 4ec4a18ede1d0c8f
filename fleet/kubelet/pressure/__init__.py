"""Pressure on a node: eviction, preemption, the OOM killer.

Here: when a resource runs short and who goes. Not here: declared usage (`profile.usage`), what
pods use (`containers`), and the pods that are ended (`pods`).
"""
