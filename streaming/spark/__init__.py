"""What depends on the Spark that runs: :mod:`.versions`."""
