"""A batch's way from staged files into logs, by one rename."""
