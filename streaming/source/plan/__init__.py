"""From offsets to the tasks of a batch."""
