"""Values that producers wrote by a schema registry, decoded into columns.

``registry``
    the records of ``_schemas``: which schemas there are, by subject, version and id; what a schema
    and a value may be at most.
``avro``, ``json_schema``, ``protobuf``
    one format each: the column that a schema gives, and a value's way into it.
``avro_columns``, ``avro_kernels``
    many values of Avro at once, for the schemas that most topics have.

Nothing is trusted: schemas and values are whatever lies in the log. Read ``registry`` first. The
libraries are those of the extra ``schemas``; they are imported where a query decodes.
"""
