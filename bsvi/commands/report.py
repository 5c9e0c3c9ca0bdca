"""``bsvi report RUNS... -o report/``: tables, figures and one page, from run folders or folders of them."""

import sys
from pathlib import Path

from bsvi.system.terminal import Parser


def main(words: list[str]) -> int:
    parser = Parser(prog="bsvi report", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUNS", help="run folders, or folders that hold some")
    parser.add_argument("-o", "--out", type=Path, default=Path("report"), help="where the report goes (default report)")
    parser.add_argument(
        "--watch",
        action="store_true",
        help="write the page again whenever a run changes, until Ctrl-C; an open page reloads itself",
    )
    arguments = parser.parse_args(words)

    from bsvi.report import make_report

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)  # the page's path alone is for other programs

    print(make_report(arguments.runs, arguments.out, watch=arguments.watch, say=say))
    return 0
