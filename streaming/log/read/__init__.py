"""Reading a log forward: slices, transactions, timestamps, damage."""
