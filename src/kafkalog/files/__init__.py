"""Files and folders: opened safely, replaced, copied, read from a store, watched. Knows no log.

``regular``, ``open_file``
    open what lies in a log directory, whatever it is, and copy it; positioned reads.
``atomic``
    replace small files.
``paths``, ``storage``, ``remote_path``, ``remote_store``
    from texts to paths, local or in an object store.
``objects``, ``forked_objects``
    the calls that a log in an object store is made of, also after a fork.
``watch``, ``timeouts``, ``parallel``, ``deferred_signals``, ``closing``
    values derived from files; calls that may not return; threads; interrupts.
``system``
    what is asked of the machine beside its files: the seam on which crash tests stand.

Read ``regular`` and ``atomic`` first.
"""
