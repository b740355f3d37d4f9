"""The links of a tree of tokens: from a token to its parents, and from a parent to its children and registrations.

A parent refers to a child weakly while nobody observes that child, so a long-lived parent does not keep the tokens of
finished work alive. A child is observed while it has a registration or an observed child of its own. Then the link is
strong: its callbacks must run even if nothing else refers to the token.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Self

from halter.cancel.fork import after_fork

if TYPE_CHECKING:
    from halter.cancel.deadlines import Deadline
    from halter.cancel.registration import Registration

# One lock for all tokens and registrations. It is held only to read or write slots, though for many tokens at a time.
# Re-entrant, because a signal handler or a finalizer may call cancel() while this thread holds the lock. For the same
# reason there is only one: a finalizer may need any of them at any time, so two could not be taken in a fixed order.
lock = threading.RLock()


class TreeNode:
    """The part of a token that links it to others."""

    __slots__ = ("__weakref__", "_deadline_entry", "_observers", "_parent", "_subs", "is_cancelled")

    is_cancelled: bool
    _parent: Self | tuple[Self, ...] | None
    # Children and registrations by id(): a weak reference to a child that nobody observes, else the object itself.
    # None until first used, and again once cancelled.
    _subs: dict[int, Any] | None
    # The number of registrations and of observed children. While it is above zero, parents refer to us strongly.
    _observers: int
    _deadline_entry: Deadline | None
    # Bytes; a smaller dict is kept when it is empty, for the next child. Not a global: finalizers read it, also when
    # the interpreter ends and the globals of modules are None.
    _LARGE: ClassVar[int] = 1000

    def _parents(self) -> tuple[Self, ...]:
        parent = self._parent
        if parent is None:
            return ()
        return parent if isinstance(parent, tuple) else (parent,)

    def _add(self, sub: object, link: object) -> None:
        while not self.is_cancelled:
            subs = self._subs
            if subs is None:
                with lock:
                    if self._subs is None and not self.is_cancelled:
                        self._subs = {}
            else:
                subs[id(sub)] = link
                if self._subs is subs:  # else _shrink() has just dropped the dict
                    return

    def _remove_child(self, child: TreeNode) -> None:
        subs = self._subs
        if subs is not None:
            subs.pop(id(child), None)
            if not subs and subs.__sizeof__() > self._LARGE:
                self._shrink(subs)

    def _shrink(self, subs: dict[int, Any]) -> None:
        """Drop an empty dict that was large: a dict keeps its memory when entries are removed."""
        if lock is None:  # the interpreter ends
            return
        with lock:
            if self._subs is subs:
                self._subs = None
                # Another thread may have added an entry just before the line above, and seen the dict in place.
                if subs:
                    self._subs = subs

    def _add_observer(self) -> None:
        """Count an observer. With the first one, parents refer to us strongly; a cancelled token needs no parent."""
        with lock:
            todo = [] if self.is_cancelled else [self]
            while todo:
                token = todo.pop()
                token._observers += 1
                if token._observers == 1:
                    todo.extend(token._set_links(token))

    def _remove_registration(self, reg: Registration) -> None:
        """Remove a registration. With the last observer gone, parents refer to us weakly again."""
        subs = self._subs
        if subs is None or subs.pop(id(reg), None) is None:
            return  # cancelled meanwhile, which removes the links
        if not subs and subs.__sizeof__() > self._LARGE:
            self._shrink(subs)
        with lock:
            _remove_observers([self])

    def _unlink_from_parents(self) -> None:
        """Remove this token from its parents, which may live long. A cancelled token needs no parent."""
        with lock:
            for parent in self._parents():
                subs = parent._subs
                # Whoever removes a strong link, or makes it weak, also removes the observer. Both happen under the
                # lock, so a registration that ends at the same time does not remove it again.
                if subs is not None and subs.get(id(self)) is self:
                    parent._remove_child(self)
                    _remove_observers([parent])

    def _set_links(self, link: object) -> list[Self]:
        """Have the timer and the parents refer to this token by *link*. Returns the parents that do."""
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


def _remove_observers(todo: list[TreeNode]) -> None:
    """Remove one observer from each, under the lock. A token without observers no longer observes its parents."""
    while todo:
        token = todo.pop()
        token._observers -= 1
        if token._observers == 0:
            todo.extend(token._set_links(weakref.ref(token)))


def _after_fork() -> None:
    global lock  # noqa: PLW0603  (a thread that does not exist in the child may hold it)
    lock = threading.RLock()


after_fork(_after_fork)
