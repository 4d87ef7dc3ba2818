"""Where a query starts and ends, and how much one micro-batch takes."""
