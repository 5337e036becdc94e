"""What stands above the learners: the audit, and the planner."""
