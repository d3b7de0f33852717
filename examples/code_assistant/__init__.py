"""An assistant for a source tree, in the terminal: messages that fill in place. See README.md beside this file."""
