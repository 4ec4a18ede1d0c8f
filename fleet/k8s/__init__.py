"""Records of API objects and the effects that kubelets ask for: slotted, typed, without logic.

Here: what decoders make and kubelets read. It imports nothing of fleet above it.
"""
