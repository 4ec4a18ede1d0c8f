"""A cluster in virtual time: an API server in memory, its controllers, and the way to it. Sans-IO.

Real kubelets and the real reactor talk to it as to a real one; what those do is not in here.
"""
