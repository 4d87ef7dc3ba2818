"""Files and folders: opened safely, replaced, copied, read from a store, watched. Knows no log."""
