"""Conversion of records to the vectors that learners compute with."""
