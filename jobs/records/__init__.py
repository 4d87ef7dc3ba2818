"""Records as people ask for them on the command line: which ones, and how they are printed."""
