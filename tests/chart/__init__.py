"""The Helm chart, installed on a real control plane."""
