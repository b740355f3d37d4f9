"""A message that changes the running turn: the answer stops, its words are kept, and the turn goes on with yours."""

import threading

from halter import Agent
from halter.testing import Gate, ScriptedModel

middle = Gate()
model = ScriptedModel(["Paris is the capital of ", middle], "Lyon is on the Rhône.")  # or "openai:gpt-5"


def user(session):
    middle.wait_reached()  # the model is in the middle of its answer
    receipt = session.steer("No, about Lyon.")
    receipt.settled(10)
    print(f"the message was {receipt.state} as {receipt.mode}")


with Agent(model).session() as session:
    typing = threading.Thread(target=user, args=(session,))
    typing.start()
    turn = session.run("Tell me about Paris.")
    typing.join()
    print(turn.text)
    for message in session.history:
        print(f"  {type(message).__name__}: {message.text}")
