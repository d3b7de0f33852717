"""The commands, one module each.

A command knows the parsed options and the screen, and returns an exit status. It must not know argparse or the other
commands' options. A module is imported only when its command runs, since it imports what the command needs.
"""
