"""Parts that stores with tables share: rows, decisions, and the verbs that are no store's own.

Each keeps its own SQL, because their dialects and their locks differ; what a row means, what becomes of it, and the
steps of a shared verb are here once.  Nothing here imports a driver.
"""
