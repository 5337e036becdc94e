"""Write what the benchmarks print into the documentation, between its markers.

    python benchmarks/readme.py [NAME ...]

Each block is what its commands printed on the code as it is, with the commands above it. The headline figures
of the README are taken out of these blocks: they cannot say anything else. So is the table of needs, in the
README and in docs/learners.md. `headlines` alone writes both, and runs nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "benchmarks"
BLOCKS = {
    "demo": ["make demo"],
    "bench": ["make bench"],
    "raw-records": ["python benchmarks/raw_records.py tables"],
    "raw-records-moments": ["python benchmarks/raw_records.py moments"],
    "raw-records-shifts": ["python benchmarks/raw_records.py shifts"],
    "raw-records-names": ["python benchmarks/raw_records.py names memory"],
    "raw-records-texts": ["python benchmarks/raw_records.py texts"],
    "utility": ["make utility"],
    "regret": ["python benchmarks/regret.py --plot docs/images/regret.svg"],
    "planner": ["python benchmarks/planner.py"],
    "components": ["python benchmarks/components.py"],
    "before-labels": ["python benchmarks/before_labels.py"],
    "steps": ["python benchmarks/steps.py"],
    "steps-choice": ["python benchmarks/steps.py --choice"],
    "steps-unseen": ["python benchmarks/steps.py --unseen"],
    "history-start": ["python benchmarks/history_start.py"],
    "history-start-forest": ["python benchmarks/history_start.py --forest bank ijcnn1"],
    "forest": [
        "python benchmarks/forest.py --draw Phishing Bananas Agrawal-abrupt Agrawal-gradual "
        "RBF-slow RBF-fast Sine-abrupt letter ijcnn1 adult"
    ],
    "forest-more": ["python benchmarks/forest.py bank german diabetes SEA Hyperplane-fast random-tree"],
    "forest-changes": [
        "python benchmarks/forest.py usps LED-drift letter-turned letter-moving",
        "python benchmarks/forest.py RBF-fast RBF-fast-2 RBF-fast-3",
    ],
    "forest-unseen": ["python benchmarks/forest.py --unseen"],
    "forest-recovery": ["python benchmarks/recovery.py"],
    "forest-speed": ["python benchmarks/forest.py --speed"],
    "forest-pairs": ["python benchmarks/forest.py --pairs"],
    "private-forest": ["python benchmarks/private_forest.py"],
    "private-forest-speed": ["python benchmarks/private_forest.py --speed"],
    "private-forest-gram": ["python benchmarks/private_forest.py --gram"],
    "yang2021": ["python -m benchmarks.papers yang2021"],
    "plan": ["streampair budget plan --n 1e6 --d 20 --epsilon 1 --delta 1e-6 --positive-rate 0.01"],
    "broker-run": ["python benchmarks/broker_run.py"],
    "replay": ["python benchmarks/replay.py"],
    "history": ["python benchmarks/history.py"],
    "history-groups": ["python benchmarks/history.py --groups 208"],
    "backfill": ["python benchmarks/backfill.py"],
    "serve": ["python benchmarks/serve.py --rounds 4"],
    "stores": ["python benchmarks/stores.py"],
    "kill-loop": ["python benchmarks/kill_loop.py"],
    "worker-options": ["python benchmarks/worker_options.py"],
}


def _held_out(name: str) -> str:
    """Where a table of `make utility` says the AUC of LogisticRegression, and of PairFTRL at epsilon 1."""
    return rf"^{name}: .*?^LogisticRegression +(\S+).*?^PairFTRL +(?:\S+ \+- \S+ +){{2}}(\S+)"


def _one_pass(stream: str, *learners: str) -> str:
    """Where a table of forest.py says the AUC and the microseconds of learners, in their order."""
    return r".*?".join(rf"^{stream} +{learner} +(\S+) +\S+ +(\S+)" for learner in learners)


# (command, sentence, where its figures are in docs/benchmarks)
HEADLINES = [
    (
        "make bench",
        "`PairOGD` scores and learns a record of 9 features in {} us.",
        r"^predict \+ learn on dicts, d=9 +\S+ +(\S+)",
    ),
    (
        "python benchmarks/forest.py",
        "ijcnn1, AUC of the second half of one pass: {} at {} us a record for `Forest`, {} at {} us for "
        "River's adaptive random forest, {} at {} us for its `LogisticRegression`, {} at {} us for "
        "`StandardScaler | PairOGD(scale=None)`.",
        _one_pass("ijcnn1", "Forest", "ARF", "LogisticRegression", "PairOGD"),
    ),
    (
        "make bench",
        "On Apache Kafka a worker scores, learns and saves {} events a second and process: {} times what a "
        "bare loop does that only decodes each event and sends one back.",
        r"^  PairOGD +(\S+) events/s.*?PairOGD / bare +(\S+)",
    ),
    (
        "make utility",
        "ijcnn1, held-out AUC: {} for scikit-learn's logistic regression without privacy, {} for `PairFTRL` "
        "at epsilon 1.",
        _held_out("ijcnn1"),
    ),
    ("make utility", "adult: {} and {}.", _held_out("adult")),
    (
        "python -m benchmarks.papers yang2021",
        "{} of {} published AUCs of Yang et al. (2021) come out within one standard deviation.",
        r"^(\d+) of (\d+) cells within one published standard deviation",
    ),
]

# (need, learner, sentence, page of docs/benchmarks, where its figures are)
NEEDS = [
    (
        "the best ranking of a table",
        "Forest",
        "mean AUC of {0} streams {2}; `PairOGD` {1}, River's `LogisticRegression` {3}",
        "rivals.md",
        r"\| streampair: PairOGD \| \S+ \| (\d+) \| (\S+) .*?\| streampair: Forest \| \S+ \| \d+ \| (\S+) "
        r".*?\| river: LogisticRegression \| \S+ \| \d+ \| (\S+) ",
    ),
    (
        "speed",
        "PairOGD",
        "{1} us to score and learn a record of 9 numbers; `Forest` {0} us",
        "speed.md",
        r"^Phishing +9 +(\S+) .*?^predict \+ learn on dicts, d=9 +\S+ +(\S+)",
    ),
    (
        "texts of many words",
        "PairOGD",
        "film reviews behind `BagOfWords`: AUC {1}; `LogisticRegression` {0}",
        "raw-records.md#messages",
        r"^film reviews +BagOfWords +\d+ +\d+ +\d+ +(\S+) +(\S+)",
    ),
    (
        "a weight for each feature",
        "PairOGD",
        "mean AUC of six tables as they are {0}; `LogisticRegression` on scaled and encoded ones {1}",
        "raw-records.md#tables",
        r"^mean of six +\d+ +(\S+) +\S+ +(\S+)",
    ),
    (
        "a table in parts, whose learners are added up",
        "PairMoments",
        "mean AUC of six tables in one pass {1}; `PairOGD` {0}",
        "raw-records.md#moments",
        r"^table +n +columns +PairOGD .*?^mean of six +\d+ +\S+ +(\S+) +\S+ +(\S+)",
    ),
    (
        "privacy",
        "PairFTRL",
        "held-out AUC on adult {1} at epsilon 1; scikit-learn's logistic regression without privacy {0}",
        "accuracy.md",
        _held_out("adult"),
    ),
    (
        "privacy, and a boundary that is not linear",
        "PrivateForest",
        "mean AUC of {0} sets {2} at epsilon 1; `PairFTRL` {1}, DP-EBM {3}",
        "rivals.md",
        r"\| streampair: PairFTRL \| \S+ \| (\d+) \| (\S+) .*?\| streampair: PrivateForest \| \S+ \| \d+ "
        r"\| (\S+) .*?\| interpret: DP-EBM \| \S+ \| \d+ \| (\S+) ",
    ),
]
PAGES_OF_NEEDS = {"README.md": "docs/benchmarks/", "docs/learners.md": "benchmarks/"}


def run(command: str) -> str:
    """What a command prints, with the recipe lines that make echoes left out."""
    words = command.replace("make ", "make --silent ").replace("python ", f"{sys.executable} ").split()
    if words[0] == "streampair":
        words[:1] = [sys.executable, "-m", "streampair_connectors"]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if (
        words[1:3] != ["-m", "benchmarks.papers"] or done.returncode != 1
    ):  # 1: a cell is off, as the table says
        done.check_returncode()
    return done.stdout.rstrip()


def pages() -> list[Path]:
    """Where the markers may stand."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def replaced(text: str, name: str, block: str) -> str | None:
    """The text with another block between the markers of that name; None if it has no such markers."""
    pattern = rf"(<!-- begin: {re.escape(name)} -->\n).*?(<!-- end -->)"
    if not re.search(pattern, text, re.S):
        return None
    return re.sub(pattern, lambda found: f"{found[1]}{block}\n{found[2]}", text, count=1, flags=re.S)


def write(name: str, block: str) -> Path:
    """Put a block where its markers are."""
    for page in pages():
        text = replaced(page.read_text(encoding="utf-8"), name, block)
        if text is not None:
            page.write_text(text, encoding="utf-8")
            return page
    sys.exit(f"no page has markers for {name!r}")


def figures() -> str:
    """All pages of figures, one after the other."""
    return "\n".join(page.read_text(encoding="utf-8") for page in sorted(FIGURES.glob("*.md")))


def headlines(figures: str) -> str:
    """The README's list of measured figures, each with its command."""
    lines = []
    for command, sentence, pattern in HEADLINES:
        found = re.search(pattern, figures, re.S | re.M)
        if found is None:
            sys.exit(f"docs/benchmarks has no figures for {sentence!r}: correct HEADLINES")
        lines.append(f"- `{command}`: {sentence.format(*found.groups())}")
    return "\n".join(lines)


def needs(figures: str, folder: str) -> str:
    """The table of needs, with links to the pages of the folder."""
    lines = ["| you need | take | measured |", "|---|---|---|"]
    for need, learner, sentence, page, pattern in NEEDS:
        found = re.search(pattern, figures, re.S | re.M)
        if found is None:
            sys.exit(f"docs/benchmarks has no figures for {sentence!r}: correct NEEDS")
        measured = sentence.format(*found.groups())
        lines.append(f"| {need} | `auc.{learner}` | {measured} ([figures]({folder}{page})) |")
    return "\n".join(lines)


def write_needs(figures: str) -> None:
    """Put the table of needs on its pages."""
    for name, folder in PAGES_OF_NEEDS.items():
        page = ROOT / name
        text = replaced(page.read_text(encoding="utf-8"), "needs", needs(figures, folder))
        if text is None:
            sys.exit(f"{name} has no markers for 'needs'")
        page.write_text(text, encoding="utf-8")


def main() -> None:
    names = sys.argv[1:] or list(BLOCKS)
    for name in names:
        if name == "headlines":
            continue
        blocks = [f"$ {command}\n{run(command)}" for command in BLOCKS[name]]
        page = write(name, "```text\n" + "\n".join(blocks) + "\n```")
        print(f"{page.relative_to(ROOT)}: {name}")
    write("headlines", headlines(figures()))
    write_needs(figures())


if __name__ == "__main__":
    main()
