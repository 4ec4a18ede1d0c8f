"""Nodes as a Locust dashboard wants them, and API users next to them.

Here: Locust's worker protocol, the children that run Locust, a number of nodes that changes.
Not here: anything that a run without a dashboard needs; only the locustfiles import Locust.
"""
