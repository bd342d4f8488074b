"""`pollux doctor`: checks of the machine, the config and the store, with cures."""
