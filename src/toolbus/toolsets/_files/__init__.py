"""Walking, searching and reading files below one root, for the toolsets that do so."""
