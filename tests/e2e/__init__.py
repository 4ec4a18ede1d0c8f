"""The real command line on real control planes."""
