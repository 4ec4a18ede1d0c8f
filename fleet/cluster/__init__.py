"""The target cluster, as fleet itself asks it: credentials, checks, ownership, clean-up.

Here: few requests, raw JSON, under fleet's own user agent; kubernetes-asyncio loads credentials.
Not here: anything that is sent per node or per pod.
"""
