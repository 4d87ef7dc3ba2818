"""Consumer groups over log directories: who reads which partition."""
