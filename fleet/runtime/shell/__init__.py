"""A subset of the shell, run in no time: how long a script takes, how it ends, what it leaves.

Here: grammar, words, programs. It does not grow by special cases.
"""
