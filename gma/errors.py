"""Base classes of errors and warnings that the caller can fix."""


class UserError(Exception):
    """The message says what is wrong and what to do; the command line prints it without a traceback."""


class Caution(UserWarning):
    """A warning: it works, but may not be what the caller wants; the command line prints it as one line."""
