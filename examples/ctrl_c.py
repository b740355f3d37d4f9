"""Ctrl+C stops the answer, and not the program: the conversation goes on. Ctrl+C at the prompt leaves."""

import signal
import sys

from halter import Agent
from halter.testing import Gate, ScriptedModel

model = ScriptedModel(["It was a dark and stormy night; ", Gate()], "As you wish.")  # or "openai:gpt-5"
session = Agent(model).session()


def on_ctrl_c(_signal, _frame):
    if not session.stop().stopped:  # a handler may call stop(), and interrupt() without a text
        sys.exit(0)


def answer(text):
    for event in session.stream_sync(text):
        if event.kind == "text.delta":
            print(event.data.text, end="", flush=True)
    turn = session.turn
    print("" if turn.status == "done" else f"\n({turn.status}: {turn.reason})", flush=True)


signal.signal(signal.SIGINT, on_ctrl_c)
with session:
    while line := input("> "):
        answer(line)
