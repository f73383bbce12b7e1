"""The report of a study: one HTML page that shows it as it stands."""

from scalable_bo.report.page import write_report

__all__ = ["write_report"]
