"""Pollux decides when each of many things should be checked or run, runs it, and neither loses nor doubles a firing."""
