"""The Spark sink: partitioning, staging, commit, recovery."""
