"""A model of lease, fencing, inbox and stop, explored exhaustively: two owners, two clients, every crash and delay.

It is small and complete rather than close to the code. One session; a log to which the servers append only what expects
its present end; a lease that is changed by compare-and-set; a key for each node that expires on the servers, and not
before the node has stopped its turns by its own clock, unless the node is suspended or dead. An append that was sent
may arrive at any time later, or never, and its answer may be lost: a node learns what became of it by reading the log.
It may also give the append up, which may arrive nevertheless. Then it settles that with an append without events before
it reads the log again, as `halter.stores.nats.log_writer` does. Two clients send one message each until it is
acknowledged; a third one stops what runs, or records the stop if the owner does not answer.

    pytest -s tests/stores/test_lease_model.py     in parts, and with planted defects
    python tests/stores/test_lease_model.py        a fault and a given up commit with two messages: half a minute

The two owners are alike, and so are the two messages: only runs in which the first lease is taken by the first node and
the first message is "a" are explored.

The mutants show that the properties can fail: without fencing, without the stop by the own clock, without ids, without
looking for recorded stops, without settling what was given up, the explorer finds a violation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import pytest

Entry = tuple[str, str, int]  # what, of which message, by which generation


class Append(NamedTuple):
    """An append on its way: it fits only if the log has *expected* entries when it arrives."""

    entry: Entry
    expected: int
    commit: int  # tells it from an equal one that is sent after the first one was given up


class Node(NamedTuple):
    """A gateway."""

    status: str = "up"  # up, suspended, dead
    is_lost: bool = False  # by its own clock its lease may end: it has stopped
    taking: int = 0  # the generation of a lease that it has taken, and not yet fenced
    generation: int = 0  # the generation with which it owns the session; 0 if it does not
    known: int = 0  # entries of the log that it knows
    sending: Append | None = None
    unanswered: Append | None = None  # it was given up, and may still arrive
    running: str = ""  # the message whose turn runs here: model and tools are at work
    stopping: str = ""  # the message whose turn was stopped here, and is not sealed yet


class State(NamedTuple):
    """The world."""

    nodes: tuple[Node, Node] = (Node(), Node())
    log: tuple[Entry, ...] = ()
    owner: int = -1
    generation: int = 0
    keys: tuple[bool, bool] = (True, True)
    net: frozenset[Append] = frozenset()
    acked: frozenset[str] = frozenset()  # messages that clients know to be accepted
    stopped: frozenset[str] = frozenset()  # messages whose turns clients know to be stopped
    record: int = -1  # a recorded stop: how many entries the log had
    recorded_in: int = 0  # the generation that had the session then
    is_applied: bool = False  # the record was carried out
    faults: int = 0
    given_up: int = 0
    absent: Append | None = None  # it was given up, and the log was read without it
    is_late: bool = False  # that one was written afterwards


MESSAGES = ("a", "b")
ENDS = ("done", "stopped", "crash")
MUTANTS = {
    "no fencing": "an old owner has written after a new one",
    "no own clock": "tools of two owners run at the same time",
    "no ids": "a was acknowledged, and accepted 2 times",
    "no records": "a waited when the session was stopped, and the next owner began with it",
    "no settling": "the log was read without a commit that was given up, and it was written later",
}
MOST_LEASES = 3


class Model(NamedTuple):
    """What is explored, and with which defect."""

    most_faults: int = 1
    most_given_up: int = 1
    messages: tuple[str, ...] = MESSAGES
    mutant: str = ""


def open_turn(log: tuple[Entry, ...]) -> str:
    """The message of the turn that has begun and not ended."""
    found = ""
    for what, message, _ in log:
        if what == "apply":
            found = message
        elif what in ENDS:
            found = ""
    return found


def waiting(log: tuple[Entry, ...]) -> list[str]:
    """The messages that may be applied, in order."""
    found = [message for what, message, _ in log if what == "accept"]
    gone = {message for what, message, _ in log if what in ("apply", "hold")}
    return [message for message in dict.fromkeys(found) if message not in gone]


def put(state: State, number: int, node: Node) -> State:
    nodes = (node, state.nodes[1]) if number == 0 else (state.nodes[0], node)
    return state._replace(nodes=nodes)


def send(state: State, number: int, what: str, message: str) -> State:
    node = state.nodes[number]
    append = Append((what, message, node.generation or node.taking), node.known, state.given_up)
    return put(state, number, node._replace(sending=append))._replace(net=state.net | {append})


def steps(state: State, model: Model) -> Iterator[State]:
    """Every state that may come next."""
    for append in state.net:  # it arrives; what cannot fit any more may be forgotten
        if append.expected == len(state.log):
            yield state._replace(
                log=(*state.log, append.entry),
                net=frozenset() if model.mutant != "no fencing" else state.net,
                is_late=state.is_late or append == state.absent,
            )
        elif model.mutant == "no fencing" and append.entry not in state.log:
            yield state._replace(log=(*state.log, append.entry))
    for number in (0, 1):
        yield from faults(state, number, model)
        node = state.nodes[number]
        if node.status == "up" and not node.is_lost:
            yield from node_steps(state, number, node, model)
    yield from record_steps(state)


def faults(state: State, number: int, model: Model) -> Iterator[State]:
    node = state.nodes[number]
    if state.faults < model.most_faults and node.status == "up":
        more = state._replace(faults=state.faults + 1)
        yield put(more, number, Node("dead"))
        yield put(more, number, node._replace(status="suspended"))
        if model.mutant != "no own clock":  # cut off: it stops by its own clock
            yield put(more, number, node._replace(is_lost=True, running="", stopping=""))
    if node.status == "suspended":
        # It wakes: either its lease still lasts by its own clock, or it finds that it is lost, and stops.
        if state.keys[number]:
            yield put(state, number, node._replace(status="up"))
        yield put(state, number, node._replace(status="up", is_lost=True, running="", stopping=""))
    may_expire = (
        node.status != "up" or node.is_lost or (model.mutant == "no own clock" and state.faults < model.most_faults)
    )
    if state.keys[number] and may_expire:
        keys = (False, state.keys[1]) if number == 0 else (state.keys[0], False)
        yield state._replace(keys=keys)
    if node.status == "up" and node.is_lost:  # it joins again, as another node
        keys = (True, state.keys[1]) if number == 0 else (state.keys[0], True)
        owner = -1 if state.owner == number else state.owner
        yield put(state, number, Node())._replace(keys=keys, owner=owner)


def node_steps(state: State, number: int, node: Node, model: Model) -> Iterator[State]:
    if node.sending is not None:
        yield from learn(state, number, node, node.sending)
        if state.given_up < model.most_given_up:
            yield give_up(state, number, node, node.sending)
        return
    if node.unanswered is not None:
        yield settle(state, number, node, node.unanswered, model)
        return
    if node.generation == 0:
        if node.taking == 0:
            is_free = state.owner in (-1, number) or not state.keys[state.owner]
            is_mirrored = state.generation == 0 and number == 1
            if is_free and state.generation < MOST_LEASES and not is_mirrored:
                taken = state._replace(owner=number, generation=state.generation + 1)
                yield put(taken, number, node._replace(taking=state.generation + 1))
        elif not state.log or state.log[-1][2] < node.taking:  # the log says whether another one has begun
            yield send(put(state, number, node._replace(known=len(state.log))), number, "fence", "")
        else:
            yield put(state, number, node._replace(taking=0))
        return
    yield from owner_steps(state, number, node, model)


def give_up(state: State, number: int, node: Node, sent: Append) -> State:
    """A node waits no longer for an answer. A turn that runs goes on; a lease that was not fenced is taken anew."""
    more = state._replace(given_up=state.given_up + 1)
    if sent.entry[0] == "fence":
        return put(more, number, node._replace(sending=None, taking=0))
    return put(more, number, node._replace(sending=None, unanswered=sent))


def settle(state: State, number: int, node: Node, given_up: Append, model: Model) -> State:
    """A node appends a message without events; then the append that it gave up is written already, or never will be."""
    node = node._replace(known=len(state.log))
    if model.mutant != "no settling":
        return send(put(state, number, node), number, "settle", "")
    is_written = len(state.log) > given_up.expected and state.log[given_up.expected] == given_up.entry
    state = put(state, number, node._replace(unanswered=None))
    return state if is_written else note_absent(state, given_up)


def note_absent(state: State, given_up: Append) -> State:
    """The log was read without an append that was given up; noted only if it can still arrive."""
    return state._replace(absent=given_up if given_up in state.net else None)


def owner_steps(state: State, number: int, node: Node, model: Model) -> Iterator[State]:
    """What a node does with a session that it has."""
    log = state.log[: node.known]
    for message in model.messages:  # a client sends it, and sends it again until it is acknowledged
        if message not in state.acked:
            if model.mutant != "no ids" and any(each[:2] == ("accept", message) for each in log):
                yield state._replace(acked=state.acked | {message})
            elif message == "a" or is_known(state, "a"):
                yield send(state, number, "accept", message)
    turn = open_turn(log)
    if node.running:
        if state.record >= 0 and not state.is_applied and was_accepted(state, node.running):  # it sees the record
            yield put(state, number, node._replace(running="", stopping=node.running))
        yield send(put(state, number, node._replace(running="")), number, "done", node.running)
        stopped = put(state, number, node._replace(running="", stopping=node.running))
        yield stopped._replace(stopped=state.stopped | {node.running})  # a client stops it, and is told so at once
    elif node.stopping:
        yield send(put(state, number, node._replace(stopping="")), number, "stopped", node.stopping)
    elif turn:
        yield send(state, number, "crash", turn)
    elif state.record >= 0 and not state.is_applied and model.mutant != "no records":
        yield from carry_out(state, number, node, log)
    elif waiting(log):
        yield send(state, number, "apply", waiting(log)[0])


def is_known(state: State, message: str) -> bool:
    """Whether anything in this state tells this message from the other one."""
    return any(each[1] == message for each in (*state.log, *(append.entry for append in state.net)))


def carry_out(state: State, number: int, node: Node, log: tuple[Entry, ...]) -> Iterator[State]:
    """A node holds what waited when a stop was recorded, before it begins a turn."""
    earlier = [each for each in waiting(log) if was_accepted(state, each)]
    if earlier:
        yield send(state, number, "hold", earlier[0])
    else:
        yield state._replace(is_applied=True)
    if node.generation == state.recorded_in and waiting(log):  # it has not seen the record yet
        yield send(state, number, "apply", waiting(log)[0])


def was_accepted(state: State, message: str) -> bool:
    """Whether a message was in the log when the stop was recorded."""
    return any(each[:2] == ("accept", message) for each in state.log[: state.record])


def learn(state: State, number: int, node: Node, sent: Append) -> Iterator[State]:
    """A node reads what became of its append."""
    if len(state.log) <= sent.expected:
        return  # it has not arrived, nor anything else
    if state.log[sent.expected] != sent.entry:
        if state.log[-1][2] > sent.entry[2]:  # another owner has written: the lease is lost
            yield put(state, number, Node(node.status, node.is_lost))
        else:  # what this node gave up was written first: it reads the log again
            yield put(state, number, node._replace(sending=None, known=len(state.log)))
        return
    what, message, generation = sent.entry
    node = node._replace(sending=None, known=sent.expected + 1)
    if what == "settle":
        node, state = settled(state, node)
    if what == "fence":
        node = node._replace(taking=0, generation=generation)
    if what == "apply":
        node = node._replace(running=message)
    state = put(state, number, node)
    yield state
    if what == "accept":
        yield state._replace(acked=state.acked | {message})


def settled(state: State, node: Node) -> tuple[Node, State]:
    """A node knows the log again: with the append that it gave up, or without it."""
    given_up = node.unanswered
    assert given_up is not None
    is_written = state.log[given_up.expected] == given_up.entry
    return node._replace(unanswered=None), state if is_written else note_absent(state, given_up)


def record_steps(state: State) -> Iterator[State]:
    """A client stops the session, and its owner does not answer: the stop is recorded."""
    if state.record < 0 and state.owner >= 0 and state.nodes[state.owner].status != "up":
        yield state._replace(record=len(state.log), recorded_in=state.generation)


def violations(state: State) -> Iterator[str]:
    """What must never be so."""
    log = state.log
    for message in MESSAGES:
        accepted = sum(each[:2] == ("accept", message) for each in log)
        applied = sum(each[:2] == ("apply", message) for each in log)
        if message in state.acked and accepted != 1:
            yield f"{message} was acknowledged, and accepted {accepted} times"
        if applied > 1:
            yield f"{message} was applied {applied} times"
        if message in state.stopped and any(each[:2] == ("done", message) for each in log):
            yield f"the turn of {message} was stopped, and is done"
    generations = [generation for _, _, generation in log]
    if generations != sorted(generations):
        yield "an old owner has written after a new one"
    at_work = [node.running for node in state.nodes if node.running and node.status == "up"]
    if len(at_work) > 1:
        yield "tools of two owners run at the same time"
    for what, message, generation in log[max(state.record, 0) :] if state.record >= 0 else ():
        if what == "apply" and generation > state.recorded_in and was_accepted(state, message):
            yield f"{message} waited when the session was stopped, and the next owner began with it"
    if state.is_late:
        yield "the log was read without a commit that was given up, and it was written later"
    if open_turn(log) and sum(each[0] == "apply" for each in log) > 1 + sum(each[0] in ENDS for each in log):
        yield "two turns are open"


def violations_at_rest(state: State) -> Iterator[str]:
    """What must not be so once nothing can happen any more, though a node is alive."""
    for message in state.acked:
        if message in waiting(state.log):
            yield f"{message} was acknowledged, and is forgotten"
    if open_turn(state.log):
        yield "a turn was never sealed"


def explore(model: Model) -> tuple[int, set[str]]:
    """Visit every state; gives their number, and the violations. A mutant is left as soon as it fails as expected."""
    first = State()
    seen = {first}
    found: set[str] = set()
    queue = deque([first])
    while queue:
        # Depth first finds this one within 5,000 states, breadth first within 350,000.
        state = queue.pop() if model.mutant == "no own clock" else queue.popleft()
        found |= set(violations(state))
        following = list(steps(state, model))
        is_bounded = state.generation == MOST_LEASES  # the explorer ends here, not the world
        if not following and not is_bounded and any(node.status == "up" for node in state.nodes):
            found |= set(violations_at_rest(state))
        if model.mutant and MUTANTS[model.mutant] in found:
            break
        for each in following:
            if each not in seen:
                seen.add(each)
                queue.append(each)
    return len(seen), found


WHOLE = Model()  # takes half a minute
PARTS = {
    "one fault": Model(most_given_up=0),
    "one commit given up": Model(most_faults=0),
    "both, one message": Model(messages=("a",)),
}


@pytest.mark.parametrize("name", PARTS)
def test_no_state_breaks_a_promise(name: str) -> None:
    """In every state that two owners, two clients, three leases and these faults can reach, the promises hold."""
    count, found = explore(PARTS[name])
    print(f"{name}: {count:,} states")
    assert found == set()
    assert count > 1_000  # it was not trivial


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_breaks_one(mutant: str) -> None:
    """Without one of its parts the protocol fails as expected, and the explorer finds it."""
    model = Model(most_given_up=mutant == "no settling", mutant=mutant)
    assert MUTANTS[mutant] in explore(model)[1]


if __name__ == "__main__":
    print("{:,} states; violations: {}".format(*explore(WHOLE)))
