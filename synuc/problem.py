"""The one base of errors that have a remedy."""


class Problem(Exception):
    """Something a person can mend. The message says what is wrong and what to do; no traceback is shown for it."""
