"""Parts that stores with tables share: rows, and the decisions that are made in Python.

Each keeps its own SQL, because their dialects and their locks differ; what a row means and what becomes of it is
here once.  Nothing here imports a driver.
"""
