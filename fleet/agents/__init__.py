"""Node agents: what runs alongside a kubelet and talks to the API server too, such as kube-proxy.

Here: each agent as a machine that neither waits nor reads clocks, and their runner.
Not here: connections (`host`), rights (`cluster`), their YAML (`profile`).
"""
