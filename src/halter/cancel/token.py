"""The cancellation token: a one-way flag that belongs to one piece of work.

What it promises:

* ``is_cancelled`` is a plain slot. A check is one attribute read: no lock, no call.
* It goes from False to True once. The first reason wins and stays readable for ever.
* Cancelling marks the whole subtree first, then wakes waiters, then runs callbacks, newest and deepest first. No lock
  is held while foreign code runs, and what a callback raises is logged.
* A fresh token owns no lock, event or dict. Nothing refers to a child that nobody observes.
* ``cancel`` may be called from any thread, a signal handler and ``__del__``. It completes even if a
  ``KeyboardInterrupt`` is raised in the middle of it.

Two orders of steps make that true without locks on the fast paths. Registering writes the entry and *then* reads the
flag; cancelling sets the flag and *then* takes the entries. Whichever comes first, at least one side sees the other,
and claiming a callback is atomic, so it runs once.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any, Final, NoReturn

from halter.cancel import token_tree
from halter.cancel.deadlines import MAX_SECONDS, check_seconds, timer
from halter.cancel.fork import after_fork
from halter.cancel.registration import EarlyWaker, LoopWaker, Registration, Waker, run_callback, wake_loops
from halter.cancel.token_tree import TreeNode
from halter.cancel.wake_signal import WakeSignal

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.cancel.context import Binding
    from halter.cancel.scope import Scope


class Cancelled(BaseException):
    """The token of the running code was cancelled.

    A ``BaseException``, so that ``except Exception`` in a tool cannot swallow it. Catch it only where the token was
    made, and only if it ``belongs_to`` that token.
    """

    def __init__(self, token: CancellationToken) -> None:
        super().__init__(token)
        self.token = token

    @property
    def reason(self) -> str:
        return self.token.reason or ""

    @property
    def detail(self) -> str:
        return self.token.detail

    def belongs_to(self, token: CancellationToken) -> bool:
        """Whether *token* is cancelled, and is the token that raised this or one above it."""
        if not token.is_cancelled:
            return False
        todo = [self.token]
        while todo:
            current = todo.pop()
            if current is token:
                return True
            todo.extend(current._parents())
        return False

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class CancellationToken(TreeNode):
    """A one-way, first-reason-wins flag that can have children and a deadline."""

    __slots__ = ("deadline", "detail", "name", "reason", "was_checked")

    # Public to read, as `is_cancelled` of the base class. Only cancel() and the constructors write them.
    reason: str | None
    detail: str
    deadline: float | None  # a time.monotonic() value: the earliest of its own and its parents'
    name: str
    # Whether the code that it was bound for has ever asked for it. Such code gets a grace period after a stop.
    was_checked: bool

    def __init__(self, *, timeout: float | None = None, name: str = "") -> None:
        self.is_cancelled = False
        self.reason = None
        self.detail = ""
        self.deadline = None
        self.name = name
        self.was_checked = False
        self._parent = None
        self._subs = None
        self._observers = 0
        self._deadline_entry = None
        if timeout is not None:
            self._arm(timeout)

    # -- the tree -------------------------------------------------------------------------------

    def child(self, name: str = "", timeout: float | None = None) -> CancellationToken:
        """Make a token that is cancelled with this one, and can be cancelled alone."""
        new: CancellationToken = _new(_Child)
        new.is_cancelled = False
        new.reason = None
        new.detail = ""
        new.deadline = self.deadline
        new.name = name
        new.was_checked = False
        new._parent = self
        new._subs = None
        new._observers = 0
        new._deadline_entry = None
        if timeout is not None:
            new._arm(timeout)
        subs = self._subs
        if subs is not None:
            subs[id(new)] = _ref(new)
        if self._subs is not subs or subs is None or self.is_cancelled:  # see _add()
            new._link(self)
        return new

    @classmethod
    def any_of(cls, *tokens: CancellationToken) -> CancellationToken:
        """Make a token that is cancelled with the first of *tokens*."""
        if not tokens:
            raise TypeError("any_of() needs at least one token; for a token that nobody cancels, use NEVER")
        new: CancellationToken = _Child()
        parents = tuple(token for token in tokens if token is not NEVER)
        new._parent = parents
        new.deadline = min((p.deadline for p in parents if p.deadline is not None), default=None)
        for parent in parents:
            new._link(parent)
        return new

    def _link(self, parent: CancellationToken) -> None:
        parent._add(self, _ref(self))
        if parent.is_cancelled:  # linked first, then checked: see the module's docstring
            self.cancel(parent.reason or "", detail=parent.detail)

    # -- cancelling -----------------------------------------------------------------------------

    # One function, because a KeyboardInterrupt may come between any two lines, and the local variables say how far it
    # came.
    def cancel(self, reason: str = "interrupt", *, detail: str = "") -> bool:  # noqa: C901, PLR0912, PLR0915
        """Cancel this token and everything below it. True if this call did it.

        An ``Exception`` of a callback is logged. A ``BaseException``, such as a ``KeyboardInterrupt``, is raised again
        after every flag is set and every callback has run.
        """
        if self.is_cancelled:
            return False
        if not isinstance(reason, str) or not reason:
            msg = f'a reason is a short non-empty string such as "interrupt", not {reason!r}'
            raise TypeError(msg)
        did_it = False
        level: list[CancellationToken] = [self]  # not recursive: chains may be deep
        below: list[CancellationToken] = []
        taken: list[dict[int, Any]] = []
        unlink: list[CancellationToken] = []  # those with a parent that is not cancelled by this call
        early: list[Registration] = []
        loop_wakers: list[LoopWaker] = []
        wakers: list[Registration] = []
        callbacks: list[Registration] = []
        fatal: BaseException | None = None
        for _ in range(_MAX_INTERRUPTIONS):
            # A KeyboardInterrupt may leave this block anywhere; the variables say where to continue. Repeating a step
            # does no harm: a token is marked once, a callback is claimed once, and a waker may run twice.
            try:
                while level:
                    with token_tree.lock:
                        for token in level:
                            if not token.is_cancelled:
                                token.reason = reason  # before the flag, so that whoever sees the flag sees the reason
                                token.detail = detail
                                token.is_cancelled = True
                                if token is self:
                                    did_it = True
                            subs = token._subs
                            if subs is not None:
                                taken.append(subs)
                                token._subs = None
                            if token._deadline_entry is not None:
                                token._deadline_entry.target = None
                            parent = token._parent
                            if parent is not None and (token is self or parent.__class__ is tuple):
                                unlink.append(token)
                    for subs in taken:
                        for sub in list(subs.values()):
                            kind = sub.__class__
                            if kind is _ref:
                                child = sub()
                                if child is not None:
                                    below.append(child)
                            elif kind is Waker:
                                wakers.append(sub)
                            elif kind is Registration:
                                callbacks.append(sub)
                            elif kind is LoopWaker:
                                loop_wakers.append(sub)
                            elif kind is EarlyWaker:
                                early.append(sub)
                            else:
                                below.append(sub)
                    taken = []
                    level, below = below, []
                while early:
                    run_callback(early[-1]._fn)
                    early.pop()
                while wakers:
                    run_callback(wakers[-1]._fn)
                    wakers.pop()
                wake_loops(loop_wakers)
                loop_wakers = []
                while callbacks:
                    run_callback(callbacks.pop()._take())
                while unlink:
                    unlink[-1]._unlink_from_parents()
                    unlink.pop()
                break
            except BaseException as exc:  # noqa: BLE001  (raised again below)
                fatal = exc
        if fatal is not None:
            raise fatal
        return did_it

    # -- observing ------------------------------------------------------------------------------

    def raise_if_cancelled(self) -> None:
        if self.is_cancelled:
            raise Cancelled(self)

    def on_cancel(self, fn: Callable[[], object]) -> Registration:
        """Call *fn* once when the token is cancelled; now, in this thread, if it is already.

        *fn* runs in the thread that cancels, so it should be quick and must not wait.
        """
        if not callable(fn):
            raise TypeError(f"on_cancel() needs a function to call, not {fn!r}")
        return self._register(Registration(self, fn))

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until cancelled. False if *timeout* seconds passed first."""
        seconds = MAX_SECONDS if timeout is None else check_seconds("timeout", timeout)
        if self.is_cancelled:
            return True
        woken = WakeSignal()
        with self._register(Waker(self, woken.set)):
            woken.wait(seconds)
        return self.is_cancelled

    def sleep(self, seconds: float) -> None:
        """Block this thread for *seconds*. Raises Cancelled as soon as the token is cancelled."""
        if self.wait(check_seconds("seconds", seconds)):
            raise Cancelled(self)

    async def wait_async(self) -> None:
        """Suspend this task until cancelled."""
        import asyncio

        loop = asyncio.get_running_loop()
        woken = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        with self._register(LoopWaker(self, loop, wake)):
            await woken

    def scope(self) -> Scope:
        """``async with token.scope():`` cancels the task of the body with this token; see halter.cancel.scope."""
        from halter.cancel.scope import Scope

        return Scope(self)

    def bind(self) -> Binding:
        """``with token.bind():`` makes this the current_token() of the block."""
        from halter.cancel.context import Binding

        return Binding(self)

    # -- private --------------------------------------------------------------------------------

    def _register(self, reg: Registration) -> Registration:
        self._add(reg, reg)
        self._add_observer()
        if self.is_cancelled:  # registered first, then checked; cancel() may have claimed the callback
            fn = reg._take()
            if fn is not None:
                fn()
        return reg

    def _arm(self, timeout: float) -> None:
        seconds = check_seconds("timeout", timeout)
        when = time.monotonic() + seconds
        if self.deadline is not None and self.deadline <= when:
            return
        self.deadline = when
        if seconds == 0:
            self.cancel("timeout", detail="it timed out after 0 s")
        else:
            self._deadline_entry = timer.add(self, when, seconds)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a token lives in one process and cannot be pickled or copied; in a worker process use current_token()"
        )

    def __repr__(self) -> str:
        state = f"cancelled: {self.reason}" if self.is_cancelled else "live"
        return f"<CancellationToken {self._path() or hex(id(self))} {state}>"

    def _path(self) -> str:
        above = "|".join(filter(None, (parent._path() for parent in self._parents())))
        return "/".join(filter(None, (above, self.name)))


class _Child(CancellationToken):
    """A token with parents. Only these need a finalizer."""

    __slots__ = ()

    def __del__(self) -> None:
        # dict.pop is atomic, and our id cannot be given to another object before we return. An observed token is never
        # finalized: its parents refer to it. No global is used: they are None when the interpreter ends.
        parent = self._parent
        if isinstance(parent, tuple):
            for each in parent:
                each._remove_child(self)
        elif parent is not None:
            parent._remove_child(self)


class _Never(CancellationToken):
    """The token of code that nobody can cancel. It keeps no links, so nothing leaks through it."""

    __slots__ = ()

    def cancel(self, reason: str = "", *, detail: str = "") -> NoReturn:  # noqa: ARG002
        raise TypeError("NEVER cannot be cancelled; make a token with CancellationToken() or parent.child()")

    def child(self, name: str = "", timeout: float | None = None) -> CancellationToken:
        return CancellationToken(name=name, timeout=timeout)

    def _register(self, reg: Registration) -> Registration:
        return reg

    def __repr__(self) -> str:
        return "NEVER"


_new = object.__new__
_ref = weakref.ref
_MAX_INTERRUPTIONS: Final = 100  # of one cancel(); more are not signals but a defect of ours
# After the hook of token_tree: the timer may start a thread, which needs the new lock.
after_fork(timer.after_fork)
NEVER: Final[CancellationToken] = _Never(name="NEVER")
