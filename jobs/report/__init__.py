"""What is in log directories, and what is wrong there, as one page to look at."""
