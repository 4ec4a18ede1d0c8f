"""What a kubelet measures, as texts: the summary of its stats, and its metrics.

Here: gathering at an instant, JSON and Prometheus' text. Not what decides on it: that is pressure/.
"""
