"""What a run reports: summary, time series, live display, and words for people.

Here: how figures are kept, merged, written and shown.
Not here: where they are counted (`metrics`), whether a run goes on (`run`).
"""
