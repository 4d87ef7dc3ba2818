"""The main job, ``python -m kafkalog.jobs.demo``: flights through a log into a Delta table.

``flights``
    the input.
``queries``
    the two streaming queries.
``checks``, ``screen``
    what is checked at the end, and what is shown meanwhile.
"""
