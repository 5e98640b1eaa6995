"""What all errors have in common that whoever called can put right."""


class UserError(Exception):
    """The message says what is wrong and what to do; the command line prints it without a traceback."""
