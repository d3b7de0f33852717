"""The commands, one module each.

A command knows the parsed options and the screen, and returns an exit status. It must not know how the command line is
parsed. A module is imported only when its command runs, since it imports everything that the command needs.
"""
