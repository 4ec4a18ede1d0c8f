"""The requests of a node next to those of kubemark."""
