"""Worlds in memory and in virtual time, for tests: what a kubelet or a run talks to.

api_server, transport   an API server, and the connections of nodes to it
sim_clock, virtual_time time goes from one instant at which something is due to the next
virtual_loop            asyncio in that time
simulation, sim_faults  a whole fleet against the server, and what goes wrong between them
admission, taints       what the server makes of pods, and the controller that evicts them
cluster_fakes           the server as fleet's own requests see it: preflight, adoption, clean-up
node_world, pod_world, admission_world   parts of one kubelet
"""
