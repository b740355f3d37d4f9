"""A client library that blocks, and has never heard of being stopped: use it in a tool as it is."""

import socket
import threading
import time

from halter import Agent, tool
from halter.models import ToolCall
from halter.testing import ScriptedModel

silent = socket.create_server(("127.0.0.1", 0))  # a server that accepts and never answers
begun = threading.Event()


class Warehouse:
    """Stands for any SDK: it blocks in a socket, for a minute if it must."""

    def stock(self, article: str) -> int:
        with socket.create_connection(silent.getsockname()) as connection:
            connection.settimeout(60)
            connection.sendall(article.encode())
            begun.set()
            return int(connection.recv(100))


@tool
def stock(article: str) -> int:
    """How many of an article are there."""
    return Warehouse().stock(article)


model = ScriptedModel(ToolCall("1", "stock", '{"article": "halter"}'), "unused")  # or "openai:gpt-5"
with Agent(model, [stock]).session() as session:
    stopped_at = []

    def user():
        begun.wait()
        stopped_at.append(time.monotonic())
        session.stop()

    threading.Thread(target=user).start()
    turn = session.run("How many halters are there?")
    print(f"{turn.status} by {turn.reason}; the call is {turn.outcomes[0].status}")
    print("control was back at once" if time.monotonic() - stopped_at[0] < 5 else "that took long")
