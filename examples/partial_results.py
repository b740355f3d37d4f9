"""A tool that is stopped returns what it has: the model, and the next turn, know it."""

import threading
from collections.abc import Iterator

from halter import Agent, ToolContext, tool
from halter.models import ToolCall
from halter.testing import ScriptedModel

PAGES = [f"page {number}" for number in range(1, 1000)]
third_page = threading.Event()


@tool(grace=5.0)  # seconds to end after a stop; 0.1 unless you say so
def read_manual(ctx: ToolContext) -> Iterator[str]:
    """Read the manual, page by page. What was yielded is kept when the call is stopped."""
    for page in PAGES:
        yield page + "\n"
        if page == "page 3":
            third_page.set()
        ctx.token.wait(0.05)  # a slow shelf; the wait ends at a stop


model = ScriptedModel(ToolCall("1", "read_manual", "{}"), "I have read three pages.")  # or "openai:gpt-5"


def user(session):
    third_page.wait()
    session.steer("That is enough. What have you read?")


with Agent(model, [read_manual]).session() as session:
    threading.Thread(target=user, args=(session,)).start()
    turn = session.run("Read the manual.")
    outcome = turn.outcomes[0]
    print(f"the call is {outcome.status} and has {len(outcome.content.split())} words")
    print(turn.text)
