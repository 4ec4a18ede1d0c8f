"""The life of one run: check, prepare, bring up, keep, drain, clean up, judge.

Here: what a whole run is made of, its target, its signals, its command, how it ends.
Not here: how nodes live (`host`), what a figure is called (`report`), requests (`cluster`).
"""
