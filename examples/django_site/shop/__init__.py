"""A Django app with one model, one view, and jobs."""
