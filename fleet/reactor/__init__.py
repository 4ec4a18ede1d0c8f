"""The only loop: time and bytes become inputs of kubelets, their effects bytes and timers.

Here: the turn, calls and their limits, watches and who takes what they bring.
Not here: sockets (`wire.sockets`), what an input means (`kubelet`).
"""
