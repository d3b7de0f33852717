"""A chat that says what it is doing while it does it, and why it stopped; see README.md."""
