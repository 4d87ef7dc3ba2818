"""Options: how they are declared, what their texts may be, how they are parsed and documented.

``kinds``
    what a text may be: numbers, sizes, times, words, log directories.
``declaring``
    an option as a field of a class: name, kind, default, documentation.
``quantities``, ``json_names``
    lengths of time, sizes, points in time and JSON as people write them.
``topic_settings``
    a topic's settings, under Kafka's names.
``client``, ``bridge``
    settings of Kafka's clients; errors as one sentence.

The options of source, sink and consumer are declared beside what they decide. Read ``kinds`` and
``declaring`` first.
"""
