"""Loops over records as machine code: compiled once, kept in a folder of the user's own.

``kernel``, ``inline``
    what declares a loop, and a function that is compiled into loops.
``cache``, ``folder``
    compiled kernels as numba keeps them.
``object_code``, ``object_making``
    machine code without numba, for Spark's tasks and processes that end soon.
"""
