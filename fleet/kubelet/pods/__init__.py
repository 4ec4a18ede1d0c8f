"""The kubelet's pods: configuration, admission, workers, sync, status, PLEG, static pods.

Here: the life of a pod from binding to removal. Not here: how its containers run (`containers`).
"""
