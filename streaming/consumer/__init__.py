"""A member of a consumer group that reads, without Spark."""
