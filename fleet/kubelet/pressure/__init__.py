"""Pressure on a node: statistics, eviction, the OOM killer.

Here: when a resource runs short and who goes. Not here: declared usage (`profile.usage`).
"""
