"""The paper's own numbers as data, as printed, each with the table it comes from and what is wrong with it.

Errata are noted, never corrected: a number here is the number in the paper. Tests compare all of them with its LaTeX.
"""

from dataclasses import dataclass
from functools import cache

from bsvi.tables.data_sets import DATA_SETS

SCORES = {"log_likelihood": "Log-likelihood", "elbo": "ELBO*", "kl": "KL*", "reconstruction": "Reconstruction*"}
HIGHER_IS_BETTER = {"log_likelihood": True, "elbo": True, "reconstruction": False}  # KL* has no better side
TITLES = {name: row.title for name, row in DATA_SETS.items() if row.paper}
SETTING = "12-layer gated PixelCNN, k = 9, up to 200,000 steps, 4 seeds"

# Log-likelihood, ELBO*, KL*, Reconstruction*: mean and standard deviation over four seeds
_SCORES = {
    ("omniglot", "test", "table:omni_full_test"): """
    vae          -89.83±0.03  -89.88±0.02  0.97±0.13  88.91±0.15
    iwae         -89.02±0.05  -89.89±0.06  4.02±0.18  85.87±0.15
    svi          -89.65±0.06  -89.73±0.05  1.37±0.15  88.36±0.20
    bsvi-ds      -88.93±0.02  -90.13±0.04  8.13±0.17  81.99±0.14
    bsvi         -88.98±0.03  -90.19±0.06  8.29±0.25  81.89±0.20
    bsvi-pi      -88.95±0.02  -90.18±0.05  8.48±0.22  81.70±0.18
    bsvi-sir     -88.80±0.03  -90.24±0.06  7.52±0.21  82.72±0.22
    bsvi-sir-pi  -88.84±0.05  -90.22±0.02  7.44±0.04  82.78±0.05
    """,
    ("omniglot", "train", "table:omni_train"): """
    vae          -88.60±0.18  -88.66±0.18  1.00±0.13  87.66±0.19
    iwae         -87.09±0.12  -87.88±0.12  4.18±0.19  83.70±0.29
    svi          -88.09±0.16  -88.18±0.15  1.38±0.14  86.80±0.27
    bsvi-ds      -87.00±0.11  -88.13±0.10  8.30±0.18  79.83±0.23
    bsvi         -87.11±0.11  -88.23±0.10  8.45±0.22  79.77±0.28
    bsvi-pi      -87.10±0.11  -88.24±0.10  8.67±0.27  79.57±0.31
    bsvi-sir     -87.24±0.22  -88.57±0.25  7.67±0.22  80.89±0.44
    bsvi-sir-pi  -87.17±0.10  -88.45±0.11  7.63±0.04  80.83±0.13
    """,
    ("svhn", "test", "table:svhn_full_test"): """
    vae          -2202.90±14.95  -2203.01±14.96   0.40±0.07  2202.62±14.96
    iwae         -2148.67±10.11  -2153.69±10.94   2.03±0.08  2151.66±10.86
    svi          -2074.43±10.46   -2079.26±9.99  45.28±5.01  2033.98±13.38
    bsvi-ds       -2054.48±7.78   -2060.21±7.89  48.82±4.66   2011.39±9.35
    bsvi          -2054.75±8.22   -2061.11±8.33  51.12±3.80   2009.99±8.52
    bsvi-pi       -2060.01±5.00   -2065.45±5.88  47.24±4.62   2018.21±1.64
    bsvi-sir      -2059.62±3.54   -2066.12±3.63  51.24±5.03   2014.88±5.30
    bsvi-sir-pi   -2057.53±4.91   -2063.45±4.34  49.14±5.62   2014.31±8.25
    """,
    ("svhn", "train", "table:svhn_train"): """
    vae            -2384±13.58  -2384±13.59    0.5±0.09  2384±13.58
    iwae            -2345±8.77   -2350±9.58   2.19±0.03   2348±9.55
    svi             -2274±8.87   -2280±8.34     56±5.75  2224±12.20
    bsvi-ds      -2255.28±7.38   -2262±7.51     59±5.34   2203±9.28
    bsvi         -2255.47±7.31   -2263±7.47  62.20±4.27   2201±8.26
    bsvi-pi         -2261±5.09   -2268±6.13     58±5.10   2210±1.43
    bsvi-sir        -2260±2.73   -2268±3.01  62.17±5.51   2206±4.86
    bsvi-sir-pi     -2258±3.89   -2265±3.30     60±6.36   2206±7.79
    """,
    ("fashion-mnist", "test", "table:fmnist_full_test"): """
    vae          -1733.86±0.84  -1736.49±0.73  11.62±1.01  1724.87±1.70
    iwae         -1705.28±0.66  -1710.11±0.72  33.04±0.36  1677.08±0.70
    svi          -1710.15±2.51  -1718.39±2.13  26.05±1.90  1692.34±4.03
    bsvi-ds      -1699.14±0.18  -1706.92±0.11  41.73±0.18  1665.19±0.26
    bsvi         -1699.01±0.33  -1706.62±0.35  41.48±0.16  1665.14±0.39
    bsvi-pi      -1699.24±0.36  -1706.92±0.37  41.60±0.49  1665.32±0.31
    bsvi-sir     -1699.44±0.45  -1707.00±0.49  41.48±0.12  1665.52±0.41
    bsvi-sir-pi  -1699.09±0.28  -1706.68±0.26  41.18±0.19  1665.50±0.31
    """,
    ("fashion-mnist", "train", "table:fmnist_train"): """
    vae          -1686.11±2.40  -1688.84±2.27  11.34±1.01  1677.50±3.16
    iwae         -1659.12±0.59  -1663.80±0.53  33.62±0.31  1630.18±0.56
    svi          -1666.89±2.47  -1675.15±2.11  25.34±1.80  1649.81±3.90
    bsvi-ds      -1653.47±0.85  -1661.15±0.82  42.13±0.23  1619.02±1.05
    bsvi         -1652.87±0.87  -1660.27±0.89  41.85±0.12  1618.43±0.86
    bsvi-pi      -1654.35±0.74  -1661.99±0.68  42.00±0.48  1619.99±1.09
    bsvi-sir     -1653.34±1.36  -1660.79±1.35  41.91±0.15  1618.88±1.51
    bsvi-sir-pi  -1654.75±1.19  -1662.18±1.25  41.58±0.22  1620.60±1.44
    """,
}

# BSVI-500, then IWAE with 500, 1000, 1500, 2000, 2500 particles; test set, no deviations printed
_IWAE = {
    ("omniglot", "test", "table:omni_iwae_test"): """
    vae          -89.83  -89.83  -89.83  -89.83  -89.83  -89.83
    iwae         -89.02  -89.05  -89.04  -89.03  -89.03  -89.03
    svi          -89.65  -89.65  -89.65  -89.65  -89.65  -89.65
    bsvi-ds      -88.93  -89.05  -89.00  -88.99  -88.98  -88.97
    bsvi         -88.98  -89.10  -89.06  -89.04  -89.03  -89.02
    bsvi-pi      -88.95  -89.07  -89.03  -89.01  -89.00  -88.99
    bsvi-sir     -88.80  -88.92  -88.88  -88.86  -88.85  -88.84
    bsvi-sir-pi  -88.84  -88.95  -88.91  -88.89  -88.88  -88.87
    """,
    ("svhn", "test", "table:svhn_iwae_test"): """
    vae          -2203  -2203  -2203  -2203  -2203  -2203
    iwae         -2149  -2149  -2149  -2149  -2149  -2149
    svi          -2074  -2096  -2095  -2094  -2094  -2093
    bsvi-ds      -2054  -2079  -2078  -2077  -2077  -2077
    bsvi         -2055  -2081  -2080  -2080  -2079  -2079
    bsvi-pi      -2060  -2085  -2083  -2083  -2082  -2082
    bsvi-sir     -2060  -2087  -2086  -2085  -2085  -2084
    bsvi-sir-pi  -2058  -2083  -2082  -2081  -2081  -2080
    """,
    ("fashion-mnist", "test", "table:fmnist_iwae_test"): """
    vae          -1733.86  -1737.76  -1737.49  -1737.35  -1737.25  -1737.18
    iwae         -1710.15  -1721.01  -1720.23  -1719.80  -1719.51  -1719.29
    svi          -1705.28  -1727.30  -1726.26  -1725.72  -1725.35  -1725.07
    bsvi-ds      -1699.14  -1727.55  -1726.37  -1725.71  -1725.25  -1724.93
    bsvi         -1699.01  -1727.38  -1726.19  -1725.53  -1725.09  -1724.75
    bsvi-pi      -1699.44  -1728.05  -1726.88  -1726.23  -1725.77  -1725.44
    bsvi-sir     -1699.24  -1727.48  -1726.28  -1725.63  -1725.19  -1724.86
    bsvi-sir-pi  -1699.09  -1727.03  -1725.86  -1725.20  -1724.77  -1724.44
    """,
}

ERRATA = {
    "table:fmnist_iwae_test": (
        "As printed. The BSVI-k column is swapped against the main table between SVI-k′ and IWAE-k′ "
        "(−1705.28, −1710.15) and between BSVI-k-SIR and BSVI-k-π (−1699.24, −1699.44)."
    ),
    "table:svhn_train": (
        "As printed. The training likelihood is about 200 nats below the test likelihood; the paper does not say why. "
        "Some numbers are printed without decimals."
    ),
}
SIGNS = (
    "The paper's formula ELBO* = Reconstruction* + KL* has other signs than its tables; in the tables, and here, "
    "ELBO* = −(Reconstruction* + KL*)."
)


@dataclass(frozen=True)
class PrintedNumber:
    """A number as the paper prints it: '-89.83', and '0.03' or '' for its standard deviation."""

    text: str
    deviation: str = ""

    @property
    def value(self) -> float:
        return float(self.text)


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper: rows by method, columns by score (or by number of IWAE particles, '' for BSVI-500)."""

    dataset: str
    split: str
    source: str  # the label in the paper's LaTeX
    rows: dict[str, dict[str, PrintedNumber]]

    @property
    def erratum(self) -> str:
        return ERRATA.get(self.source, "")


@cache
def read_score_tables() -> dict[tuple[str, str], PaperTable]:
    """The paper's tables of scores by (data set, split): appendix B, whose rows contain those of section 6.

    >>> read_score_tables()["omniglot", "test"].rows["bsvi-sir"]["log_likelihood"]
    PrintedNumber(text='-88.80', deviation='0.03')
    """
    return {key[:2]: PaperTable(*key, _parse(text, tuple(SCORES))) for key, text in _SCORES.items()}


@cache
def read_iwae_tables() -> dict[str, PaperTable]:
    """The paper's comparisons of BSVI-500 with IWAE by data set: appendix C.

    >>> read_iwae_tables()["omniglot"].rows["bsvi"]["2500"].value
    -89.02
    """
    columns = ("", "500", "1000", "1500", "2000", "2500")
    return {key[0]: PaperTable(*key, _parse(text, columns)) for key, text in _IWAE.items()}


def find_dataset(name: str) -> str | None:
    """The paper's data set that a name stands for, or None.

    >>> find_dataset("FashionMNIST"), find_dataset("digits")
    ('fashion-mnist', None)
    """
    letters = "".join(letter for letter in name.lower() if letter.isalpha())
    return next((key for key in TITLES if key.replace("-", "") in letters), None)


def find_difference(dataset: str, score: str, method: str, other: str, split: str = "test") -> float | None:
    """The paper's difference between two methods' means, or None where its tables have none.

    >>> round(find_difference("omniglot", "log_likelihood", "bsvi", "svi"), 2)
    0.67
    """
    table = read_score_tables().get((dataset, split))
    if table is None or method not in table.rows or other not in table.rows:
        return None
    return table.rows[method][score].value - table.rows[other][score].value


def _parse(text: str, columns: tuple[str, ...]) -> dict[str, dict[str, PrintedNumber]]:
    rows = (line.split() for line in text.strip().splitlines())
    return {
        method: {column: PrintedNumber(*cell.split("±")) for column, cell in zip(columns, cells, strict=True)}
        for method, *cells in rows
    }


ORDER = tuple(read_score_tables()["omniglot", "test"].rows)  # the paper's methods, as its full tables list them
