"""Tables, figures, claims and the one page, made of run folders; no model is ever loaded here."""

from bsvi.report.make import make_report

__all__ = ["make_report"]
