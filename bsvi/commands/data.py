"""``bsvi data list | fetch NAME | check NAME``: what images there are, where, and whether they are what they should be."""

import logging
from pathlib import Path

from bsvi.system.terminal import Parser


def main(words: list[str]) -> int:
    parser = Parser(prog="bsvi data", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    folder = Parser(add_help=False)
    folder.add_argument("--data-dir", type=Path, help="folder of data files (default $BSVI_DATA_DIR, else a cache)")
    extra = Parser(add_help=False)
    extra.add_argument("--no-extra", action="store_true", help="SVHN: leave out the 531,131 extra images")
    verbs.add_parser("list", parents=[folder], help="the data sets, and which are here")
    fetch = verbs.add_parser("fetch", parents=[folder, extra], help="download what is missing, verify its hash")
    fetch.add_argument("name", metavar="NAME")
    check = verbs.add_parser("check", parents=[folder, extra], help="read all of it: counts, ranges, hashes")
    check.add_argument("name", metavar="NAME", help="a data set, or the path of your own images")
    check.add_argument("--sheet", type=Path, metavar="PNG", help="also write a contact sheet, to this file")
    check.add_argument(
        "--size", type=parse_sides, help="own images: crop and resize to one side (28), or height x width (28x20)"
    )
    check.add_argument(
        "--binarise", choices=("dynamic", "threshold", "none"), help="own images: as bsvi train takes them"
    )
    check.add_argument(
        "--record", action="store_true", help="write SHA256SUMS beside the files, to notice later damage"
    )
    arguments = parser.parse_args(words)
    logging.basicConfig(format="%(message)s")

    from bsvi import data  # torch comes with it, so not before the words are understood

    if arguments.verb == "list":
        rows = data.list_datasets(arguments.data_dir)
        wide = max(len(row.name) for row in rows)
        for row in rows:
            print(f"{row.name:{wide}}  here: {row.here:4}  {row.about}  ({row.licence})")
    elif arguments.verb == "fetch":
        for path in data.fetch(arguments.name, arguments.data_dir, extra=not arguments.no_extra):
            print(path)
    else:
        options = {name: getattr(arguments, name) for name in ("size", "binarise")}
        report = data.check(
            arguments.name,
            arguments.data_dir,
            extra=not arguments.no_extra,
            contact_sheet=arguments.sheet,
            record_hashes=arguments.record,
            **{name: value for name, value in options.items() if value is not None},
        )
        print(report)
    return 0


def parse_sides(text: str) -> int | tuple[int, int]:
    """One side, or height and width.

    >>> parse_sides("28"), parse_sides("28x20")
    (28, (28, 20))
    """
    height, x, width = text.partition("x")
    return (int(height), int(width)) if x else int(height)
