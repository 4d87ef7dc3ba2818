"""What is in topics, as numbers to plot, bars of text and charts."""
