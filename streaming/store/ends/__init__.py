"""Where partitions end: one rule, the files that it goes by, and looking at them again."""
