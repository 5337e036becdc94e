"""Canary audit and planner: tools that use the learners."""
