"""The process of a command or a pipeline: arguments, errors, signals.

``running``, ``arguments``
    run a command line so that an error is one line; arguments that several commands share, and
    whether files may be written where one says.
``signals``
    what Ctrl-C and SIGTERM do while Spark works.
``jars``
    Java libraries that Spark loads beside kafkalog.
"""
