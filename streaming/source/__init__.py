"""The Spark source: offsets, admission, planning of splits, reading to Arrow."""
