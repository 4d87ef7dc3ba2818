"""Generators of pages of the documentation; not installed."""
