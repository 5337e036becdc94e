"""What the learners of `auc`, `ranking` and `metric` are made of: engines, faces and tasks."""
