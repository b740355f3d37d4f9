"""The cancellation token: a one-way flag that belongs to one piece of work.

What it promises:

* ``is_cancelled`` is a plain slot. A check is one attribute read: no lock, no call.
* It goes from False to True once; the first reason wins and stays readable for ever.
* Cancelling marks the whole subtree first, then wakes waiters, then runs callbacks, newest and
  deepest first. No lock is held while foreign code runs, and what a callback raises is logged.
* A fresh token owns no lock, event or dict. A child that nobody observes is held by nobody.
* ``cancel`` may be called from any thread, a signal handler and ``__del__``, and completes even if
  a ``KeyboardInterrupt`` lands in the middle of it.

Two orders of steps make that true without locks on the fast paths. Registering writes the entry
and *then* reads the flag; cancelling sets the flag and *then* takes the entries. Whichever comes
first, at least one side sees the other, and claiming a callback is atomic, so it runs once.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from halter.cancel.fork import after_fork
from halter.cancel.seconds import LONGEST, check_seconds
from halter.cancel.timer import Deadline, timer

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.cancel.context import Binding
    from halter.cancel.scope import Scope

_log = logging.getLogger(__name__)

# One lock for all tokens, held while a few slots are read or written, of many tokens at the most.
# Re-entrant, because a signal handler or a finalizer may call cancel() while this very thread holds it.
_lock = threading.RLock()


class Cancelled(BaseException):
    """The token of the running code was cancelled.

    A ``BaseException``, so that ``except Exception`` in a tool cannot swallow it. Catch it only
    where the token was made, and only if ``belongs_to`` says that it is that token's.
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
        """Whether *token* is cancelled and is the one that was checked or one above it."""
        if not token.is_cancelled:
            return False
        todo = [self.token]
        while todo:
            seen = todo.pop()
            if seen is token:
                return True
            todo.extend(seen._parents())
        return False

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class Registration:
    """One callback of one token. Call it, or leave its ``with`` block, to unregister."""

    __slots__ = ("_fn", "_token")

    def __init__(self, token: CancellationToken, fn: Callable[[], object]) -> None:
        self._token = token
        self._fn: Callable[[], object] | None = fn

    def _take(self) -> Callable[[], object] | None:
        """Claim the callback: exactly one caller ever gets it."""
        with _lock:
            fn = self._fn
            self._fn = None
        return fn

    def __call__(self) -> bool:
        """Unregister. True if the callback has not started and now never will.

        Does not wait for a callback that is already running: that wait is a deadlock when the
        callback itself needs the lock, or the thread, of the one who unregisters.
        """
        unregistered = self._take() is not None
        if unregistered:
            self._token._discard(self)
        return unregistered

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self()


class Waker(Registration):
    """A callback of our own: quick, unable to fail, harmless when run twice; it runs before the others."""

    __slots__ = ()


class CancellationToken:
    """A one-way, first-reason-wins flag that can have children and a deadline."""

    __slots__ = (
        "__weakref__",
        "_deadline_entry",
        "_observers",
        "_parent",
        "_subs",
        "deadline",
        "detail",
        "has_listened",
        "is_cancelled",
        "name",
        "reason",
    )

    # Read them freely; only cancel() and the constructors write them.
    is_cancelled: bool
    reason: str | None
    detail: str
    deadline: float | None  # a time.monotonic() value: the least of one's own and the parents'
    name: str
    # Whether the code it was bound for has ever asked for it. Who listens is given time to obey.
    has_listened: bool

    _parent: CancellationToken | tuple[CancellationToken, ...] | None
    # Children and registrations by id(): a weak reference to a child that nobody observes, else the
    # object itself. None until first used, and again once cancelled.
    _subs: dict[int, Any] | None
    # Live registrations here, plus observed children: while above zero, the links down to us are strong.
    _observers: int
    _deadline_entry: Deadline | None

    def __init__(self, *, timeout: float | None = None, name: str = "") -> None:
        self.is_cancelled = False
        self.reason = None
        self.detail = ""
        self.deadline = None
        self.name = name
        self.has_listened = False
        self._parent = None
        self._subs = None
        self._observers = 0
        self._deadline_entry = None
        if timeout is not None:
            self._arm(timeout)

    # -- the tree -------------------------------------------------------------------------------

    def child(self, name: str = "", timeout: float | None = None) -> CancellationToken:
        """Make a token that is cancelled with this one, and can be cancelled alone."""
        new = _new(_Child)
        new.is_cancelled = False
        new.reason = None
        new.detail = ""
        new.deadline = self.deadline
        new.name = name
        new.has_listened = False
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
            msg = "any_of() needs at least one token; for one that nobody cancels, use NEVER"
            raise TypeError(msg)
        new = _Child()
        parents = tuple(token for token in tokens if token is not NEVER)
        new._parent = parents
        new.deadline = min((p.deadline for p in parents if p.deadline is not None), default=None)
        for parent in parents:
            new._link(parent)
        return new

    def _link(self, parent: CancellationToken) -> None:
        parent._add(self, _ref(self))
        if parent.is_cancelled:  # linked, then looked: see the module's docstring
            self.cancel(parent.reason or "", detail=parent.detail)

    # -- cancelling -----------------------------------------------------------------------------

    # One function, because a Ctrl+C may land between any two of its lines and it has to know how far it came.
    def cancel(self, reason: str = "stop", *, detail: str = "") -> bool:  # noqa: C901, PLR0912, PLR0915
        """Cancel this token and everything below it. True if this very call did it.

        An ``Exception`` of a callback is logged. A ``BaseException``, such as a Ctrl+C that lands
        in here, is raised again after every flag is set and every callback has run.
        """
        if self.is_cancelled:
            return False
        if not isinstance(reason, str) or not reason:
            msg = f'a reason is a short non-empty string such as "interrupt", not {reason!r}'
            raise TypeError(msg)
        did_it = False
        level: list[CancellationToken] = [self]  # no recursion: chains may be deep
        below: list[CancellationToken] = []
        taken: list[dict[int, Any]] = []
        loose: list[CancellationToken] = []  # those with a parent that is not cancelled with them
        wakers: list[Registration] = []
        callbacks: list[Registration] = []
        fatal: BaseException | None = None
        for _ in range(_MOST_INTERRUPTIONS):
            # A Ctrl+C may break off this block anywhere; its variables say where to go on. Doing a
            # step twice does no harm: a token is marked once, a callback is claimed once, and a
            # waker may run twice.
            try:
                while level:
                    with _lock:
                        for token in level:
                            if not token.is_cancelled:
                                token.reason = reason  # published before the flag
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
                                loose.append(token)
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
                            else:
                                below.append(sub)
                    taken = []
                    level, below = below, []
                while wakers:
                    _run(wakers[-1]._fn)
                    wakers.pop()
                while callbacks:
                    _run(callbacks.pop()._take())
                while loose:
                    loose[-1]._let_go()
                    loose.pop()
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
        """Call *fn* once when cancelled; at once, in this thread, if that is so already.

        *fn* runs in the thread that cancels, so it should be quick and must not wait.
        """
        if not callable(fn):
            msg = f"on_cancel() needs a function to call, not {fn!r}"
            raise TypeError(msg)
        return self._register(Registration(self, fn))

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until cancelled. False if *timeout* seconds passed first."""
        seconds = LONGEST if timeout is None else check_seconds("timeout", timeout)
        if self.is_cancelled:
            return True
        # Not an Event: Event.set() in a signal handler can deadlock with the Event.wait() that the
        # handler interrupted, in the same thread.
        bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        with self._register(Waker(self, lambda: bell.put(None))), contextlib.suppress(queue.Empty):
            bell.get(timeout=seconds)
        return self.is_cancelled

    def sleep(self, seconds: float) -> None:
        """Block this thread for *seconds*, or raise Cancelled as soon as the token is."""
        if self.wait(check_seconds("seconds", seconds)):
            raise Cancelled(self)

    async def wait_async(self) -> None:
        """Suspend this task until cancelled."""
        import asyncio  # noqa: PLC0415  (its import costs more than all of this package)

        loop = asyncio.get_running_loop()
        woken = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        with self._register(Waker(self, lambda: call_in_loop(loop, wake))):
            await woken

    def scope(self) -> Scope:
        """``async with token.scope():`` cancels its body's task with this token; see halter.cancel.scope."""
        from halter.cancel.scope import Scope  # noqa: PLC0415  (it imports asyncio)

        return Scope(self)

    def bind(self) -> Binding:
        """``with token.bind():`` makes this the current_token() of the block."""
        from halter.cancel.context import Binding  # noqa: PLC0415  (it imports this module)

        return Binding(self)

    # -- private --------------------------------------------------------------------------------

    def _register(self, reg: Registration) -> Registration:
        self._add(reg, reg)
        self._observe()
        if self.is_cancelled:  # registered, then looked; if cancel() has claimed it, that is that
            fn = reg._take()
            if fn is not None:
                fn()
        return reg

    def _parents(self) -> tuple[CancellationToken, ...]:
        parent = self._parent
        if parent is None:
            return ()
        return parent if isinstance(parent, tuple) else (parent,)

    def _add(self, sub: object, link: object) -> None:
        while not self.is_cancelled:
            subs = self._subs
            if subs is None:
                with _lock:
                    if self._subs is None and not self.is_cancelled:
                        self._subs = {}
            else:
                subs[id(sub)] = link
                if self._subs is subs:  # else it was emptied and dropped just now, see _shrink()
                    return

    def _forget(self, child: CancellationToken) -> None:
        subs = self._subs
        if subs is not None:
            subs.pop(id(child), None)
            if not subs and subs.__sizeof__() > _LARGE:
                self._shrink(subs)

    def _shrink(self, subs: dict[int, Any]) -> None:
        """Drop a dict that has become empty: one that was large once would stay so."""
        with _lock:
            if self._subs is subs:
                self._subs = None
                # Somebody may have added to it just before the line above, and found it in place.
                if subs:
                    self._subs = subs

    def _observe(self) -> None:
        """Count an observer; the first one makes the links from above strong, unless there is nothing more to hear."""
        with _lock:
            todo = [] if self.is_cancelled else [self]
            while todo:
                token = todo.pop()
                token._observers += 1
                if token._observers == 1:
                    todo.extend(token._hold(token))

    def _discard(self, reg: Registration) -> None:
        """Forget a registration; the last observer gone makes the links from above weak again."""
        subs = self._subs
        if subs is None or subs.pop(id(reg), None) is None:
            return  # cancelled meanwhile: the links are gone anyway
        if not subs and subs.__sizeof__() > _LARGE:
            self._shrink(subs)
        with _lock:
            _count_off([self])

    def _let_go(self) -> None:
        """Leave the parents, who may live long: there is nothing that one who is cancelled could hear from them."""
        with _lock:
            for parent in self._parents():
                subs = parent._subs
                # Whoever takes a strong link away, or makes it weak, counts the observer off: all under the lock, so
                # that a registration that ends at the same time does not do it again.
                if subs is not None and subs.get(id(self)) is self:
                    parent._forget(self)
                    _count_off([parent])

    def _hold(self, link: object) -> list[CancellationToken]:
        """Let the timer and the parents refer to this token by *link*; the parents that do are returned."""
        entry = self._deadline_entry
        if entry is not None and entry.target is not None:
            entry.target = link  # type: ignore[assignment]  # the token, or a weak reference to it
        linked = []
        for parent in self._parents():
            subs = parent._subs
            if subs is not None and id(self) in subs:
                subs[id(self)] = link
                linked.append(parent)
        return linked

    def _arm(self, timeout: float) -> None:
        seconds = check_seconds("timeout", timeout)
        when = time.monotonic() + seconds
        if self.deadline is not None and self.deadline <= when:
            return
        self.deadline = when
        if seconds == 0:
            self.cancel("timeout", detail="its 0 s were over")
        else:
            self._deadline_entry = timer.add(self, when, seconds)

    def __bool__(self) -> bool:
        msg = "a token is neither true nor false; ask token.is_cancelled"
        raise TypeError(msg)

    def __reduce__(self) -> NoReturn:
        msg = "a token lives in one process and cannot be pickled or copied; in a worker process use current_token()"
        raise TypeError(msg)

    def __repr__(self) -> str:
        state = f"cancelled: {self.reason}" if self.is_cancelled else "live"
        return f"<CancellationToken {self._path() or hex(id(self))} {state}>"

    def _path(self) -> str:
        above = "|".join(filter(None, (parent._path() for parent in self._parents())))
        return "/".join(filter(None, (above, self.name)))


class _Child(CancellationToken):
    """A token with parents: the only kind that pays for a finalizer."""

    __slots__ = ()

    def __del__(self) -> None:
        # dict.pop is atomic, and our id cannot be given to another object before we return. An
        # observed token never comes here: it is held from above.
        parent = self._parent
        if isinstance(parent, CancellationToken):
            parent._forget(self)
        else:
            for each in parent or ():
                each._forget(self)


class _Never(CancellationToken):
    """The token of code that nobody can cancel. It links to nothing, so nothing leaks through it."""

    __slots__ = ()

    def cancel(self, reason: str = "", *, detail: str = "") -> NoReturn:  # noqa: ARG002
        msg = "NEVER cannot be cancelled; make a token with CancellationToken() or parent.child()"
        raise TypeError(msg)

    def child(self, name: str = "", timeout: float | None = None) -> CancellationToken:
        return CancellationToken(name=name, timeout=timeout)

    def _register(self, reg: Registration) -> Registration:
        return reg

    def __repr__(self) -> str:
        return "NEVER"


def _count_off(todo: list[CancellationToken]) -> None:
    """Take one observer from each, under the lock; one that has none left is held by nobody, and observes nobody."""
    while todo:
        token = todo.pop()
        token._observers -= 1
        if token._observers == 0:
            todo.extend(token._hold(_ref(token)))


def _run(fn: Callable[[], object] | None) -> None:
    """Run one callback. A boundary: its error is logged, for the others must run too."""
    if fn is not None:
        try:
            fn()
        except Exception:  # noqa: BLE001  (a boundary)
            _log.exception("a cancellation callback failed: %r", fn)


def wake_on_cancel(token: CancellationToken, wake: Callable[[], object]) -> Registration:
    """Register a Waker: for our own code above this package."""
    return token._register(Waker(token, wake))


def call_in_loop(loop: Any, fn: Callable[[], object]) -> None:
    """Run *fn* in an asyncio loop, from anywhere; nothing if that loop is closed."""
    import asyncio  # noqa: PLC0415  (as above: and whoever has a loop has it)

    try:
        here = asyncio._get_running_loop()
        if here is not None and here is loop and asyncio.current_task(here) is not None:
            here.call_soon(fn)  # it is at work, in a task, and does not sleep: to wake it would cost a system call
        else:
            loop.call_soon_threadsafe(fn)
    except RuntimeError:
        _log.debug("the event loop of %r is closed: nobody is left to wake", fn)


_new = object.__new__
_ref = weakref.ref
_MOST_INTERRUPTIONS: Final = 100  # within one cancel(); beyond that it is no signal, but a defect of ours
_LARGE: Final = 1000  # bytes; an emptied dict below that is kept for the next child


def _after_fork() -> None:
    """Go on in a forked child, where the thread that held the lock may not exist."""
    global _lock  # noqa: PLW0603  (the child needs one that nobody holds)
    _lock = threading.RLock()
    timer.after_fork()


after_fork(_after_fork)
NEVER: Final[CancellationToken] = _Never(name="NEVER")
