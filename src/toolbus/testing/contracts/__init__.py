"""The contract suites: one package for each protocol."""
