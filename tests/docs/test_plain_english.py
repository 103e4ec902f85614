"""Documentation is written in plain English: none of these phrases appears in it.

The test of a sentence: would it stand in the documentation of PyTorch, Gymnasium or scikit-learn?
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CHANGELOG.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
    "scripts/zoo_pages.py",
    *(
        f"results/{name}.md"
        for name in ("bench", "learning_gates", "masks", "parity", "pixels", "replay_memory")
    ),
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "zoo").glob("*/*.yaml")),
    *sorted(f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")),
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("*.py")),
]

CLEAN_COMMANDS = (
    "train", "train ppo", "train a2c", "train dqn", "train sac", "train td3", "train recurrent_ppo", "eval", "resume",
    "check-env", "plan", "zoo", "zoo list", "zoo show", "zoo run", "benchmark", "runs", "runs list", "runs show",
    "runs diff", "runs rm", "export-results", "record",
)  # fmt: skip
"""Commands, such as `train ppo`, whose `--help` is checked as well."""

INSTEAD = {
    r"what a run would find out": "check the environment before training",
    r"(?:was|were|is|be|may be) taken away": "preempted",
    r"what (?:it|he|they) (?:has|have|had) learned": "its weights",
    r"(?:on )?the cores (?:there are|that there are)": "on all cores",
    r"learns? what (?:it|they) should": "learning benchmarks",
    r"(?:is|are|be|was|were) told\b": "raises an error, prints a warning, is listed",
    r"\bin (?:a|one|words|its) sentences?\b": "raises a clear error",
    r"\bthe sentence\b": "the message",
    r"no finite factor": "anything but a finite number >= 0",
    r"says nothing": "never reports",
    r"\btrembl": "smooth",
    r"as it stands|as they stand": "every example is tested",
    r"\bchance comes\b|\bby chance\b": "use self.np_random for randomness; randomly",
    r"there and here": "SB3 -> rl_training",
    r"tells? what is allowed|tells? which": "environments provide masks",
    r"\bdrown": "the value loss can dominate",
    r"may hope for": "stops bootstrapping",
    r"could show\b": "not statistically distinguishable",
    r"what else\b": "other files",
    r"by halves|no half of one": "partially deleted",
    r"which try, where": "settings excluded from the fingerprint",
    r"hardly meant": "probable mistakes",
    r"\bso many\b": "up to N, after N steps",
    r"\bheed": "use",
    r"(?:cannot|can|is|be) (?:be )?had\b": "unavailable",
    r"c(?:ame|omes) of it": "returns",
    r"g(?:one|oes|o|oing) on with": "resume",
    r"can be gone on": "can be resumed",
    r"\bheld against\b|\bholds? (?:it|them|all|each) to\b": "compared with",
    r"\bof one's own\b": "custom",
    r"\briddle": "plain words",
    r"\bgo(?:es)? on (?:to|from|in|where|as)\b|(?:run|runs|learn\(\)`?) goes? on\b": "continues, resumes",
    r"\bwithout a word\b|\bneed no word\b|\bsay the word\b": "without permission, without a message",
    r"\bwith leave\b": "with permission",
    r"\banew\b": "again",
    r"\btold of\b|\bspeaks? of\b|\bknows? of\b": "reported, mentions",
    r"\bsomebody else's\b|\bstrangers?\b": "someone else's; untrusted",
    r"\bis no (?:reason|function|feature|setting|number)\b": "is not a ...",
    r"\bwhatever (?:it|they|that) (?:is|are|was)\b": "say which",
    r"\bthe way of\b": "following",
    r"\bbeside (?:others|each other|published)\b": "compared with",
    r"\bthe clock's\b|\bbut for the clock\b": "except timings",
}


def prose(path: Path) -> str:
    """Return a file on one line, so that a phrase may cross lines; without the code that is quoted in a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        text = re.sub(r"(?<!`)`[^`\n]+`(?!`)", "`code`", text)
    return " ".join(text.split())


def riddles(text: str) -> dict[str, tuple[str, str]]:
    """Return every phrase to avoid that is in a text, with what to write instead and where it is."""
    return {
        match[0]: (instead, text[max(0, match.start() - 40) : match.end() + 40])
        for phrase, instead in INSTEAD.items()
        for match in re.finditer(phrase, text, flags=re.IGNORECASE)
    }


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_riddles(page):
    assert riddles(prose(ROOT / page)) == {}


@pytest.mark.parametrize("command", CLEAN_COMMANDS)
def test_a_help_text_has_no_riddles(command, cli):
    assert riddles(" ".join(cli(*command.split(), "--help").out.split())) == {}
