"""Loops over records as machine code: compiled once, kept in a folder of the user's own."""
