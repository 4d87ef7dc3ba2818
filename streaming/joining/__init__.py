"""A streaming query of Spark as a member of a consumer group."""
