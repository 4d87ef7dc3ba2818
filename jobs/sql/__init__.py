"""SQL over log directories by DuckDB, without a JVM: topics are tables."""
