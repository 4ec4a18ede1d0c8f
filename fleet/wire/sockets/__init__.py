"""Connections: TLS, dialling, pools, time-outs, one poller for the process.

Here: all that touches a socket. Not here: frames (`http2`), what is sent (`api`).
"""
