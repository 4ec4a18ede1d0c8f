"""The kubelets' own servers: what each endpoint answers, to whom, and the listener.

Here: paths, authentication, authorization, streaming; a thread and a loop next to the reactor's.
Not here: what a container says or measures (`kubelet`, `runtime`), which is asked in the reactor.
"""
