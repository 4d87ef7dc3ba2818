"""The process of a command or a pipeline: arguments, errors, signals.

``running``, ``arguments``
    run a command line so that an error is one line; arguments that several commands share.
``signals``
    what Ctrl-C and SIGTERM do while Spark works.
``jars``
    Java libraries that Spark loads beside kafkalog.
``output_paths``
    files that commands write for people.
"""
