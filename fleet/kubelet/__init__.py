"""One virtual kubelet, as a handful of state machines named after the real one's own parts.

Here, at the top: the kubelet, its sync loop, and what all parts share. Nothing waits, reads a clock
or touches a socket. Not here: bytes (`wire`), the simulated container runtime (`runtime`).
"""
