"""Fuzz tests of user input: a result, or a clear message.  Ten thousand cases of each kind, always the same ones."""
