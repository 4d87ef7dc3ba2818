"""What an operator does to a set: recover, handover, takeover, salvage, backup."""
