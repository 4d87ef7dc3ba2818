"""``python -m kafkalog``: the command line, where the command ``kafkalog`` is not on the PATH."""

from kafkalog.jobs.cli.app import main

if __name__ == "__main__":
    main()
