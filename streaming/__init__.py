"""The log and what Spark does with it: ``records``, ``log``, ``source``, ``sink``."""
