"""A long conversation with the embedded model, at its real window of 8,192 tokens: how far beyond it the session gets.

    python bench/local_context.py [--turns 40] [--words 600] [--window 8192]

Each turn sends a long text, as somebody does who pastes pages, and the model answers in a line. Printed are the tokens
that the conversation has altogether, the compactions with what they freed, and the time of the turns with and without
one. The goals: no turn fails, llama.cpp refuses no request as too long, and no request is larger than the window. What
the answers are worth is not judged: the model has 135 million parameters.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import os
import random
import statistics
import time
from collections import Counter

from bench.measure import Goals, print_table
from halter import Agent, Compaction, ModelSettings
from halter.events import ContextCompacted, RequestFinished, RequestRetry
from halter.models import LocalModel

_WORDS = ("river", "stone", "harbour", "winter", "engine", "letter", "garden", "window", "number", "valley", "copper")


def page(number: int, words: int) -> str:
    """A text that has not been there before."""
    pick = random.Random(number)
    return f"Page {number}. " + " ".join(pick.choice(_WORDS) for _ in range(words)) + ". Say which page this is."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--words", type=int, default=600)
    parser.add_argument("--window", type=int, default=8_192)
    options = parser.parse_args()
    model = LocalModel(context=options.window)
    agent = Agent(model, settings=ModelSettings(max_output_tokens=32, temperature=0.0), compaction=Compaction())
    failed: list[str] = []
    plain: list[float] = []
    with_compaction: list[float] = []
    with agent.session() as session:
        for number in range(options.turns):
            text = page(number, options.words)
            before, start = len(_of(session, ContextCompacted)), time.perf_counter()
            turn = session.run(text)
            taken = time.perf_counter() - start
            done = _of(session, ContextCompacted)[before:]
            how = "".join(
                f", compacted ({each.how}: {each.before} to {each.after} tokens) {each.error}" for each in done
            )
            print(
                f"turn {number}: {turn.reason or turn.status}, {taken:.0f} s, {session.context.tokens} tokens{how}",
                flush=True,
            )
            is_cut = turn.reason == "output_limit"  # 32 tokens are enough here
            if turn.status != "done" and not is_cut:
                failed.append(f"turn {number}: {turn!r} {turn.error}")
            (with_compaction if done else plain).append(taken)
        compactions = _of(session, ContextCompacted)
        requests = _of(session, RequestFinished)
        retries = _of(session, RequestRetry)
    model.close()
    for each in failed:
        print(each)
    # The pages are of one length, and the first request has nothing but the first page.
    sent = options.turns * (requests[0].answer.usage.input_tokens + requests[0].answer.usage.output_tokens)
    largest = max(each.answer.usage.input_tokens for each in requests)
    hows = Counter(each.how for each in compactions)
    rows = [
        ["turns", str(options.turns)],
        ["tokens of the conversation, as llama.cpp counts", f"{sent:,}"],
        ["largest request, as llama.cpp counts", f"{largest:,}"],
        *([f"compactions, {how}", str(count)] for how, count in hows.items()),
        ["a turn, median", f"{statistics.median(plain):.1f} s"],
        ["a turn that compacts, median", f"{statistics.median(with_compaction or [0.0]):.1f} s"],
    ]
    print_table(f"The embedded model at {options.window:,} tokens", ["", ""], rows)
    goals = Goals()
    goals.check(f"{len(failed)} turns failed (goal: 0)", is_met=not failed)
    goals.check(
        f"{sum(each.why == 'too_long' for each in compactions)} requests refused as too long (goal: 0)",
        is_met=all(each.why != "too_long" for each in compactions),
    )
    goals.at_most("the conversation, in windows (at least 3)", 3 * options.window / sent, 1.0)
    goals.at_most("the largest request, of the window", largest / options.window, 1.0)
    goals.check(f"{len(retries)} retries (goal: 0)", is_met=not retries)
    print(f"\nOn {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f} at the end.")
    return goals.exit_code


def _of(session, kind):
    return [event.data for event in session.events() if isinstance(event.data, kind)]


if __name__ == "__main__":
    sys.exit(main())
