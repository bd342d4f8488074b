"""The documentation, and the parts of it that are drawn from the code."""
