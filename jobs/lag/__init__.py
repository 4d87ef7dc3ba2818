"""How far readers are behind, in offsets, bytes and time: consumer groups and checkpoints."""
