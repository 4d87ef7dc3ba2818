"""The Spark sink: what Spark sees, columns, partitioning."""
