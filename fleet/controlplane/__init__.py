"""The local control plane: real etcd, API server, scheduler and controller-manager.

controlplane.py runs one as children of this process, standing.py one that outlives it, build.py
finds or makes the programs that both need. Nothing is imported here: most users need a constant.
"""
