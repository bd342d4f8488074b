"""Which real servers do the tests talk to?  One that was named, else one of the machine, else one from a wheel."""
