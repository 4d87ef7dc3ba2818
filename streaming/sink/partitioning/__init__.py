"""Which partition a row goes to."""
