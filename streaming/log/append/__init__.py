"""Appending to a log, and bringing segments and indexes into order."""
