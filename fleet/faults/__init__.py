"""What goes wrong on purpose: typed faults, whom they hit, and how they begin and end. Sans-IO.

A fault changes an input of a machine, its runtime, its clock or its connection; never a result.
How a user asks for one is not here (`run/`, `scenario/`), nor is what follows from it (`kubelet/`).
"""
