"""Base classes of the learners: mixins, label encoders, buffers, private sessions."""
