"""``bsvi report RUNS... -o report/``: tables, figures and one page, from run folders or folders of them."""

import argparse
from pathlib import Path


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bsvi report", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUNS", help="run folders, or folders that hold some")
    parser.add_argument("-o", "--out", type=Path, default=Path("report"), help="where the report goes (default report)")
    parser.add_argument("--watch", action="store_true", help="make it anew while runs go on, until interrupted")
    arguments = parser.parse_args(words)

    from bsvi.report import make_report

    print(make_report(arguments.runs, arguments.out, watch=arguments.watch))
    return 0
