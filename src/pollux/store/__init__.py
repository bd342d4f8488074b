"""Stores: one contract, and a backend for each database."""
