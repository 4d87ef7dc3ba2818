"""Loops over records as machine code: compiled once, kept in a folder of the user's own.

``kernel``, ``inline``
    what declares a loop, and a function that is compiled into loops.
``cache``, ``folder``
    compiled kernels as numba keeps them, and object files made of them.
``object_code``
    machine code without numba, for processes that end soon.

Read ``kernel`` first.
"""
