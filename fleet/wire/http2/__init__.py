"""HTTP/2 as a codec: frames, header compression, streams, flow control.

Here: bytes in, messages out, and the reverse. Not here: sockets, TLS, any object of Kubernetes.
"""
