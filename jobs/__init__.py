"""Pipelines for spark-submit, and the command line."""
