"""What the adapters of several vendors share."""
