"""Chaos, soak and a server that answers nonsense, on a local control plane of their own."""
