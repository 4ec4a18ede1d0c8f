"""One virtual kubelet: its managers, named as upstream names them."""
