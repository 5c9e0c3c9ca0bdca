"""``bsvi bench decoder | sampling | sizes | memory``: see docs/performance.md."""


def main(words: list[str]) -> int:
    from bsvi.bench.__main__ import main as bench

    return bench(words)
