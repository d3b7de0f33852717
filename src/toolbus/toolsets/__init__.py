"""Ready-made tools. Each module is imported on its own, so that nobody pays for what is not used."""
