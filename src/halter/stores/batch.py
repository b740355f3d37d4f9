"""Commands whose events are written in one transaction: decide, commit, publish, effects.

A signal handler may raise between any two instructions; then another thread goes on (see `halter.stores.writer`). So
each step is marked when it is complete, and a step that is not marked can be done again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from halter.errors import StoreError, WriteRefused
from halter.stores.base import Write
from halter.stores.command import run_effect

if TYPE_CHECKING:
    from halter.stores.command import Command, CommandTransaction, Log

__all__ = ["CommandBatch"]

_log = logging.getLogger(__name__)


class CommandBatch:
    """One batch, and how far it has come."""

    __slots__ = ("_is_decided", "_is_written", "_refused", "_transactions", "_was_interrupted", "commands")

    def __init__(self, *commands: Command[Any]) -> None:
        self.commands = list(commands)
        self._transactions: dict[Log, CommandTransaction] = {}
        self._refused: dict[Log, Exception] = {}
        self._is_decided = False
        self._is_written = False  # except for what was refused
        self._was_interrupted = False

    def write(self) -> None:
        """Run the commands in order, and commit their events together."""
        for command in self.commands:
            if command.log is None:
                _run_job(command)
            else:
                self._decide(command, command.log)
        self._is_decided = True
        self._commit()
        self._is_written = True

    def refuse_interrupted(self) -> None:
        """Refuse what may not have been written, because the thread that wrote it was interrupted."""
        if self._is_written:
            return
        self._was_interrupted = True
        for command in self.commands:
            if command.log is None:
                command.error = StoreError("it was interrupted by a signal; check whether it was done")
            elif not self._is_stored(command.log):
                self._refused[command.log] = WriteRefused("it was interrupted", command.log.lease.session)
        self._is_written = True

    def publish(self) -> None:
        """Show what is durable now; discard the state of the sessions whose events were refused."""
        for log, transaction in self._transactions.items():
            if log in self._refused:
                log.discard()
                continue
            if transaction.events:
                transaction.is_durable = True
                log.publish(transaction.events)
            for show in transaction.shows:
                run_effect(show)

    def sort_refused(self) -> tuple[list[Command[Any]], list[Command[Any]]]:
        """Set the errors of refused commands; returns the commands that are done, and those to try again, each alone.

        Of several commands of one session that were refused together, only one may be at fault. And if they were
        interrupted, we do not know why they were not written.
        """
        if not self._refused:
            return self.commands, []
        done: list[Command[Any]] = []
        again: list[Command[Any]] = []
        for command in self.commands:
            error = self._refused.get(command.log) if command.log is not None else None
            if error is None or command.error is not None:
                done.append(command)
            elif isinstance(error, WriteRefused) and (
                self._was_interrupted or sum(each.log is command.log for each in self.commands) > 1
            ):
                again.append(command)
            else:
                command.error = error
                done.append(command)
        return done, again

    def run_effects(self) -> None:
        """Run the effects of what is durable."""
        for log, transaction in self._transactions.items():
            while transaction.effects and log not in self._refused:
                run_effect(transaction.effects[0])
                del transaction.effects[0]  # only then: it is run at least once

    def _decide(self, command: Command[Any], log: Log) -> None:
        """Let one command decide. A boundary: what it raises is its caller's."""
        transaction = self._transactions.get(log)
        written = 0
        try:
            if transaction is None:
                transaction = self._transactions[log] = log.begin()
            written = len(transaction.events)
            command.result = command.decide(transaction)
        except Exception as error:  # noqa: BLE001
            command.error = error
            if transaction is not None and len(transaction.events) != written:
                # Half of its events are applied to the state: the session is loaded again.
                self._refused[log] = WriteRefused(f"another command failed: {error}", log.lease.session)

    def _commit(self) -> None:
        """Write everything except the sessions whose events are refused.

        A boundary: the store may be a user's own, and its callers get whatever it raises.
        """
        refused = self._refused
        writes = {
            log: Write(log.lease, transaction.events, transaction.waiting)
            for log, transaction in self._transactions.items()
            if transaction.events and log not in refused
        }
        while writes:
            try:
                next(iter(writes)).store.commit(list(writes.values()))
            except WriteRefused as error:
                guilty = [log for log in writes if log.lease.session == error.session] or list(writes)
                refused.update(dict.fromkeys(guilty, error))
                for log in guilty:
                    del writes[log]
            except StoreError as error:
                refused.update(dict.fromkeys(writes, error))
                return
            except Exception as error:  # noqa: BLE001
                _log.exception("a store raised an error that is not a StoreError")
                refused.update(dict.fromkeys(writes, StoreError(f"the store failed: {type(error).__name__}: {error}")))
                return
            else:
                return

    def _is_stored(self, log: Log) -> bool:
        """Whether the events of a session are in the store, though the commit was interrupted.

        A boundary: False if the store cannot be read. Then the commands are tried again, and their callers get the
        error of that.
        """
        transaction = self._transactions.get(log)
        if transaction is None or not self._is_decided or log in self._refused:
            return False
        last = transaction.events[-1].seq if transaction.events else 0
        try:
            return not last or bool(log.store.read(log.lease.session, last - 1, limit=1))
        except Exception:  # noqa: BLE001
            return False


def _run_job(command: Command[Any]) -> None:
    """Run a job for the store alone. A boundary: its error is the caller's."""
    try:
        command.result = command.decide(None)
    except Exception as error:  # noqa: BLE001
        command.error = error
