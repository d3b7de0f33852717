"""An assistant for an issue tracker, whose conversations are documents in MongoDB. See README.md beside this file."""
