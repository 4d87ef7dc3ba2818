"""The main job, ``python -m kafkalog.jobs.demo``: flights through a log into a Delta table.

``__main__``
    the job, and what it shows meanwhile.
``queries``
    the flights, the two streaming queries, and what is checked at the end.
"""
