"""One virtual kubelet, as a handful of state machines named after the real one's own parts.

Here, at the top: `kubelet.py`, and what all parts share: turn, events, environment, pod worker,
facts. A part imports only what stands below it (`.importlinter`). Nothing waits, reads a clock or
touches a socket. Not here: bytes (`wire`), the simulated container runtime (`runtime`).
"""
