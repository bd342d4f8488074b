"""Whatever a person writes: an answer, or a clear line.  Ten thousand cases of each kind, the same ones every time."""
