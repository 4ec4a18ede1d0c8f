"""Devices of a node: plugins, topology, resources, dynamic resource allocation.

Here: who gets which device. Not here: admission of pods (`pods`).
"""
