"""The kubelet's pods: configuration, admission, sync, status, PLEG, static pods, who is evicted.

Here: the life of a pod from binding to removal. Not here: how its containers run (`containers`).
"""
