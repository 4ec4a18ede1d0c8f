"""A node of fleet next to a real kubelet: the judge."""
