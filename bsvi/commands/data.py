"""``bsvi data list | fetch NAME | check NAME``: what images there are, where, and whether they are what they should be."""

import argparse
import logging
from pathlib import Path


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bsvi data", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument("--data-dir", type=Path, help="folder of data files (default $BSVI_DATA_DIR, else a cache)")
    extra = argparse.ArgumentParser(add_help=False)
    extra.add_argument("--no-extra", action="store_true", help="SVHN: leave out the 531,131 extra images")
    verbs.add_parser("list", parents=[folder], help="the data sets, and which are here")
    fetch = verbs.add_parser("fetch", parents=[folder, extra], help="download what is missing, verify its hash")
    fetch.add_argument("name", metavar="NAME")
    check = verbs.add_parser(
        "check", parents=[folder, extra], help="read all of it: counts, ranges, hashes, contact sheet"
    )
    check.add_argument("name", metavar="NAME", help="a data set, or the path of your own images")
    check.add_argument("--sheet", type=Path, metavar="PNG", help="contact sheet (default NAME.png in this folder)")
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
        sheet = arguments.sheet or Path(f"{Path(arguments.name).name}.png")
        extra_too = not arguments.no_extra
        print(
            data.check(
                arguments.name, arguments.data_dir, extra=extra_too, contact_sheet=sheet, record_hashes=arguments.record
            )
        )
    return 0
