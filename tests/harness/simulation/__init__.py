"""Deterministic simulation: real workers against a cluster in memory, in virtual time, drawn from a seed."""
