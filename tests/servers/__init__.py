"""Real servers of the tests: one that was named, else one of the machine, else one from a wheel."""
