"""What do the stores with tables share?  How values become rows, and every decision that is made in Python.

Each keeps its own SQL, because their dialects and their locks differ; what a row means and what becomes of it stands
here once.  Nothing here imports a driver.
"""
