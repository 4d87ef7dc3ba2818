"""The main job, ``python -m kafkalog.jobs.demo``: flights through a log into a Delta table."""
