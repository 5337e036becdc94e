"""From records to the vectors that learners compute with."""
