"""What is in log directories, and what is wrong there, as one page to look at.

``facts``
    what a report is made of, from one round over the logs.
``findings``
    what is wrong, and which command mends it.
``page``, ``sections``, ``charts``, ``markup``
    the page.
``summary``
    the same for a terminal and for ``--json``.

Read ``facts`` first.
"""
