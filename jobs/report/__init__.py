"""What is in log directories, and what is wrong there, as one page to look at.

``facts``
    what a report is made of, from one round over the logs.
``findings``
    what is wrong, and which command mends it; the same for a terminal and for ``--json``.
``page``, ``sections``, ``charts``
    the page; charts also as pictures and as bars of text.

Read ``facts`` first.
"""
