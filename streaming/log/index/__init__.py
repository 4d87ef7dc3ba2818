"""The indexes of a segment: by offset, by timestamp, of aborted transactions."""
