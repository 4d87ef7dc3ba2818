"""The log, and what Spark does with it; ``docs/architecture.md`` has the packages."""
