"""Options: how they are declared, what their texts may be, how they are parsed and documented.

``declaring``
    an option as a field of a class: name, kind, default, documentation; Kafka's clients' settings.
``kinds``, ``quantities``
    what a text may be: numbers, sizes, times, words, log directories; JSON as people write it.
``read_options``, ``store_options``, ``topic_settings``
    the source's options; those of stores and tiers; a topic's settings, under Kafka's names.
``bridge``
    errors as one sentence.

A new option is a field of ``ReadOptions`` here, or of ``WriteOptions`` in the sink's
``write_options``. Read ``declaring`` first.
"""
