"""Where conversations are kept. Each module is one store; all pass the same contract."""
