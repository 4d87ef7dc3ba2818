"""Batches that tasks have written, and that nobody has decided on yet."""
