"""The objects of the Kubernetes API as kubelets read and write them, and the effects they ask for.

Here: records that name their members, selectors, patches, events, times. No socket, clock or path.
"""
