"""The terminal: text that a person sees, and lines that a person types.

These modules know streams, text, and the events that they display. They must not know the runtime, sessions, stores or
the command line, so that they can be tested with plain text.
"""
