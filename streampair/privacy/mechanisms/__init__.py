"""The mechanisms of the private learners, one file each: plan, calibration, run, and words."""
