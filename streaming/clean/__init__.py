"""Compaction of one partition's log, as Kafka's cleaner does it; knows no set and no locks."""
