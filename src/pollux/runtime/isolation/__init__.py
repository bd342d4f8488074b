"""Handlers in child processes: the parent, the child and the frames between them."""
