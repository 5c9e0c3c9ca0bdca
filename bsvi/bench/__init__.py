"""Ratios measured in one run: `python -m bsvi.bench --help`. The figures and what they mean: docs/performance.md."""
