"""Scenario files: what goes wrong when on which nodes, read, checked and laid out in time. Sans-IO.

Who plays them is in `run/`; the faults themselves are in `faults/`.
"""
