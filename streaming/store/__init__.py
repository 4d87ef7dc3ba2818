"""A set of log directories: who belongs to it, what is committed, who may change it."""
