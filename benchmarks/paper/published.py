"""What the paper is said to claim, and where that was read.

The text of the paper itself was not at hand when this was written: what stands here was read in its
abstract, in public accounts of it and in the repository that its authors published. A figure of
which those give no number has none here.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCES = {
    "abstract": "Patil, Jain, Dutta, Stoica, Gonzalez, ICML 2022: the abstract, "
    "<https://arxiv.org/abs/2207.07697>",
    "account": "an account of the paper's evaluation, in Chinese, which names what Figures 3 to 5 "
    "and Tables 2 and 3 show: <http://99it.com.cn/news/yyz/2022/0906/91025_4.html>",
    "press": "another account, in English: "
    "<https://statedai.com/training-bert-and-resnet-on-smartphones-35-energy-reduction.html>",
    "code": "the authors' repository, <https://github.com/ShishirPatil/poet>, commit 6e63098: "
    "graphs, constants, and the picture of the system on its pages",
}


@dataclass(frozen=True)
class Published:
    """A figure or table of the paper.

    Attributes:
        title: what it shows.
        claim: what is claimed there, as far as it was read.
        source: a key of SOURCES.
    """

    title: str
    claim: str
    source: str


PUBLISHED = {
    "table1": Published(
        "what each method can do",
        "POFO takes linear models alone, POET others too; the marks of the table's cells were not "
        "at hand",
        "account",
    ),
    "table2": Published(
        "the devices",
        "four boards: MKR1000 (Cortex-M0), nRF52840 (Cortex-M4F), Raspberry Pi 4B+ (A72), Jetson "
        "TX2; no number was read, so the constants here are those of the authors' code",
        "account",
    ),
    "figure1": Published(
        "how it goes",
        "a model's ops are profiled on the device; a program finds the schedule of least energy "
        "within memory and time; the device recomputes and pages",
        "code",
    ),
    "figure2": Published(
        "a schedule: what runs when",
        "none with a number was read",
        "abstract",
    ),
    "figure3": Published(
        "energy against peak memory, a column a device",
        "on every device the schedule of least energy, with less memory and within the time "
        "budget; no number was read. The accounts' headline, 35 % less energy, does not say than "
        "what",
        "account",
    ),
    "figure4": Published(
        "energy within runtime budgets: both together, and each alone",
        "recomputing and paging together pay under various runtime budgets; no number was read",
        "account",
    ),
    "figure5": Published(
        "POET and Capuchin, ResNet-18 on the A72",
        "as memory shrinks Capuchin takes 73 to 141 % more energy than with all of the memory, "
        "POET less than 1 %",
        "account",
    ),
    "table3": Published(
        "POET and POFO, ResNet-18 on the Jetson TX2",
        "8.3 % less peak memory and 13 % more throughput than POFO",
        "account",
    ),
    "growth": Published(
        "how the energy of recomputing grows as memory shrinks",
        "as O(n²)",
        "press",
    ),
}
