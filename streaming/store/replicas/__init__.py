"""A set of several nodes: who votes, who is in sync, who leads, and how a state is decided."""
