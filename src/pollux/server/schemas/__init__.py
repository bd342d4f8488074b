"""Schemas of HTTP requests and answers."""
