"""An assistant for a source tree, in the terminal: messages that are updated in place. See README.md in this folder."""
