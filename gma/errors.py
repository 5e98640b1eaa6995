"""What all errors and warnings have in common that whoever called can put right."""


class UserError(Exception):
    """The message says what is wrong and what to do; the command line prints it without a traceback."""


class Caution(UserWarning):
    """Something that works, and may not be what whoever called wants; the command line prints it as one line."""
