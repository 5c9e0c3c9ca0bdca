"""The verbs of the command line, one module each with ``main(words) -> exit code``."""
