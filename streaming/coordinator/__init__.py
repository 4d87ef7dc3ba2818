"""The internal topics of Kafka's coordinators: schemas, records, views, positions of groups."""
