"""The nodes of one process: kubelets made, started at a pace, connected, certified, ended.

Here: what stands between one run and the reactor, and what the machine must give.
Not here: what a kubelet does (`kubelet`), when it is called (`reactor`).
"""
