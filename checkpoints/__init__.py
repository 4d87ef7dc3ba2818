"""Small durable state: Kafka's checkpoint files, the commit state. Knows no log and no Spark."""
