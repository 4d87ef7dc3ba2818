"""Keyed views of a log: the newest row of each key."""
