"""The store on a PostgreSQL server: for many processes on many machines.

Claims go past each other by `FOR UPDATE SKIP LOCKED`, everything else meets at the rows it changes.  No verb keeps
anything in its session, so that a pooler in transaction mode may stand in between.
"""
