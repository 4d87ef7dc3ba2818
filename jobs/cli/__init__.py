"""The command ``kafkalog``: look at log directories, bring them into order, give them away."""
