"""Node agents: what runs beside a kubelet and talks to the API server too, such as kube-proxy."""
