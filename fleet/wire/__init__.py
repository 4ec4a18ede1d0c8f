"""From records to bytes and back: HTTP/2, sockets, and the operations of the API.

Nothing here knows a kubelet; see the three packages.
"""
