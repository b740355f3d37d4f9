"""Stop a scenario at every point at which a stop can arrive, and check that it survives.

``interrupt_everywhere`` runs a scenario once without a stop and records every point that it passes:

* each line of Halter's code and of the scenario, in every thread that it starts: this covers token checks, callbacks,
  hand-overs between threads and every other place where the order matters;
* each step of the event loop, just before it runs: this covers what happens between lines, such as a task whose result
  is there but that has not resumed yet.

Then it runs the scenario again for each of these points, and cancels the token exactly there, in the thread that
arrives. A point is identified by its place and how often it was passed before, so a failure can be repeated alone, and
racing threads do not change the numbers of others.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import io
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.threads.frames import frame_of
from halter.cancel.threads.pool import retire_threads
from halter.cancel.token import CancellationToken, Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

_PACKAGE: Final = Path(__file__).resolve().parent.parent
_TESTING: Final = Path(__file__).resolve().parent
_PARTS: Final = 30  # see _join()


class InterruptFailure(AssertionError):
    """A scenario did not survive a stop at one point; the cause is chained."""


@dataclass(frozen=True)
class Point:
    """A place in the code, and how often the scenario has passed it, counted from 1."""

    place: str
    nth: int

    def __str__(self) -> str:
        return f"{self.place}#{self.nth}"


@dataclass(frozen=True)
class Report:
    """The points that were tried. One is missed if the scenario did not pass it when it ran again."""

    points: list[Point]
    missed: list[Point]


def interrupt_everywhere(
    scenario: Callable[[CancellationToken], Any],
    *,
    check: Callable[[], object] | None = None,
    repeat: int = 2,
    only: Callable[[str], bool] | None = None,
    at: str | None = None,
    timeout: float = 30.0,
) -> Report:
    """Run *scenario* with a stop at every point, and raise InterruptFailure for the first that breaks it.

    *scenario* is a function or coroutine function that gets a token and does its work under it. It may
    return, or raise ``Cancelled`` of that token; anything else is a failure, and so is taking longer
    than *timeout* seconds. To have the stop do something else than cancel, such as ``session.stop()``,
    register that with ``token.on_cancel``. *check* is called after each run and raises if an
    invariant is broken. A place that is passed again and again, in a loop, is tried the first *repeat*
    times. *only* chooses the places, by their names, where all would take too long. *at* tries a single
    point: the one that a failure has named.
    """
    explorer = _Explorer(scenario, check, timeout)
    with _exploring():
        explorer.run(None)  # imports modules and fills caches before points are counted
        if at is None:
            passed = explorer.run(None)
            points = [point for point in passed if point.nth <= repeat and (only is None or only(point.place))]
        else:
            points = [point_named(at)]
        missed = [point for point in points if point not in explorer.run(point)]
    return Report(points, missed)


def points_of(scenario: Callable[[CancellationToken], Any], *, timeout: float = 30.0) -> list[Point]:
    """Run *scenario* once, without a stop, and return the points that it passes."""
    return _Explorer(scenario, None, timeout).run(None)


def interrupt_at(scenario: Callable[[CancellationToken], Any], point: Point, *, timeout: float = 30.0) -> bool:
    """Run *scenario* once, with a stop at one point. True if it passed that point.

    For a stop that cannot be had twice in one process, such as its death: run each in a process of its own.
    """
    return point in _Explorer(scenario, None, timeout).run(point)


def point_named(name: str) -> Point:
    """The point with this name, as a failure shows it."""
    place, _, nth = name.rpartition("#")
    return Point(place, int(nth))


class _Explorer:
    """Runs one scenario again and again, each time in a thread and an event loop of its own."""

    def __init__(
        self, scenario: Callable[[CancellationToken], Any], check: Callable[[], object] | None, timeout: float
    ) -> None:
        self._scenario = scenario
        self._check = check
        self._timeout = timeout

    def run(self, target: Point | None) -> list[Point]:
        """Run the scenario with the stop at *target*; returns the points that it passed until then."""
        token = CancellationToken(name="everywhere")
        watch = _Watch(token, target, inspect.getsourcefile(inspect.unwrap(self._scenario)))
        failure: list[BaseException] = []
        retire_threads()  # threads that run already would not be traced
        runner = threading.Thread(target=self._run_once, args=(token, watch, failure), daemon=True)
        processor = time.process_time()
        with _watching(watch):
            runner.start()
            _join(runner, self._timeout)
        if runner.is_alive():
            processor = time.process_time() - processor
            stacks = f"{_stack_of(runner)}{_others(runner)}"
            _join(runner, self._timeout)  # to tell what is blocked from what is slow, or was starved by other programs
            since = "It has not ended since." if runner.is_alive() else "It has ended since: it is slow, not blocked."
            raise InterruptFailure(
                f"the scenario hangs{_stopped_at(target)}; after {self._timeout:g} s, in which this process used "
                f"{processor:.2f} s of processor time, it was here:\n{stacks}\n{since}"
            )
        if failure:
            raise InterruptFailure(f"the scenario failed{_stopped_at(target)}: {failure[0]!r}") from failure[0]
        return watch.passed

    def _run_once(self, token: CancellationToken, watch: _Watch, failure: list[BaseException]) -> None:
        """Run the scenario and its check. A boundary: whatever they raise is the result."""
        watch.runner = threading.get_ident()
        try:
            try:
                if inspect.iscoroutinefunction(self._scenario):
                    with asyncio.Runner(loop_factory=lambda: _SteppedLoop(watch)) as runner:
                        runner.run(self._scenario(token))
                else:
                    self._scenario(token)
            except Cancelled as exc:
                if not exc.belongs_to(token):
                    raise
            sys.settrace(None)
            if self._check is not None:
                self._check()
        except BaseException as exc:  # noqa: BLE001
            failure.append(exc)


class _Watch:
    """Records the points that are passed; cancels the token at the target, and then stops recording."""

    def __init__(self, token: CancellationToken, target: Point | None, scenario_file: str | None) -> None:
        self.passed: list[Point] = []
        self.is_done = False
        self.runner = 0  # the thread that ends with this run
        self._token = token
        self._target = target
        self._target_place = "" if target is None else target.place
        self._scenario_file = scenario_file
        self._counts: Counter[str] = Counter()
        self._is_ours: dict[int, bool] = {}
        self._has_points: dict[int, bool] = {}
        # Held only to count, never while the token is cancelled. Re-entrant: a finalizer may run while its thread holds
        # it, and pass points itself.
        self._lock = threading.RLock()

    def is_ours(self, code: CodeType) -> bool:
        known = self._is_ours.get(id(code))
        if known is None:
            _seen_code[id(code)] = code
            known = _is_product(code.co_filename) or code.co_filename == self._scenario_file
            self._is_ours[id(code)] = known
        return known

    def has_points(self, code: CodeType) -> bool:
        """Whether the lines of this code are points; with a target, only those of the code that the target is in."""
        known = self._has_points.get(id(code))
        if known is None:
            known = self.is_ours(code) and (self._target is None or _is_in(self._target_place, code))
            self._has_points[id(code)] = known
        return known

    def arrive(self, place: str) -> None:
        if self._target is not None and place != self._target_place:
            return
        with self._lock:
            if self.is_done:
                return
            self._counts[place] += 1
            point = Point(place, self._counts[place])
            if self._target is not None and point != self._target:
                return
            self.passed.append(point)
            self.is_done = self._target is not None
        if self.is_done:
            self._token.cancel("interrupt", detail=f"at {point}")


_current: _Watch | None = None
_explorations = 0


@contextlib.contextmanager
def _exploring() -> Iterator[None]:
    """Keep the trace functions of threads between two runs: the next run may use a thread that ends its job late."""
    global _explorations  # noqa: PLW0603  (a trace function is global)
    _explorations += 1
    try:
        yield
    finally:
        _explorations -= 1


@contextlib.contextmanager
def _watching(watch: _Watch) -> Iterator[None]:
    """Report each line that runs to *watch*, in threads that are started from now on."""
    global _current  # noqa: PLW0603  (a trace function is global)
    before = threading.gettrace()
    threading.settrace(_on_event)
    _current = watch
    try:
        yield
    finally:
        _current = None
        threading.settrace(before)


def _on_event(frame: FrameType, event: str, _arg: object) -> Any:
    """Trace function, as for sys.settrace: called for each new frame, and then for its lines.

    One function for all runs: a thread that one run has started and the next one uses is watched too.
    """
    watch = _current
    if watch is None:
        if not _explorations:
            sys.settrace(threading.gettrace())  # this thread was started for a run: restore its trace function
        return None
    if watch.is_done:
        if threading.get_ident() == watch.runner:
            sys.settrace(None)  # no other run uses this thread
        return None
    if not watch.has_points(frame.f_code):
        return None
    if event == "line":
        watch.arrive(place_of(frame))
    return _on_event


class _SteppedLoop(asyncio.SelectorEventLoop):
    """An event loop that reports each of its steps before it runs."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        return super().call_soon(self._step, callback, *args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        return super().call_soon_threadsafe(self._step, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        return super().call_at(when, self._step, callback, *args, context=context)

    def _step(self, callback: Any, *args: Any) -> None:
        if not self._watch.is_done:
            self._watch.arrive(f"loop step, {self._describe(callback)}")
        callback(*args)

    def _describe(self, callback: Any) -> str:
        task = getattr(callback, "__self__", None)
        if isinstance(task, asyncio.Task):
            places = [place_of(frame) for frame in _frames_of(task.get_coro()) if self._watch.is_ours(frame.f_code)]
            return f"resuming {places[-1]}" if places else "resuming a task"
        return f"calling {getattr(callback, '__qualname__', type(callback).__name__)}"


# This runs for each line of every run and must be fast: hashing a code object or comparing paths is slow. So both are
# looked up by id, and the code objects are kept alive so that their ids are not reused.
_places: dict[tuple[int, int], str] = {}
_seen_code: dict[int, CodeType] = {}


def place_of(frame: FrameType) -> str:
    code, line = frame.f_code, frame.f_lineno
    place = _places.get((id(code), line))
    if place is None:
        _seen_code[id(code)] = code
        place = _places[id(code), line] = f"{_file_name(code.co_filename)}:{line} in {code.co_qualname}"
    return place


def _is_in(place: str, code: CodeType) -> bool:
    """Whether a place may be a line of this code."""
    return place.startswith(f"{_file_name(code.co_filename)}:") and place.endswith(f" in {code.co_qualname}")


@functools.cache
def _is_product(file: str) -> bool:
    path = Path(file)
    return path.is_relative_to(_PACKAGE) and not path.is_relative_to(_TESTING)


@functools.cache
def _file_name(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(_PACKAGE.parent)) if path.is_relative_to(_PACKAGE) else path.name


def _frames_of(awaitable: Any) -> Iterator[FrameType]:
    """The frames of a suspended coroutine, outermost first."""
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "ag_frame", None)
        if frame is not None:
            yield frame
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "ag_await", None)


def _join(thread: threading.Thread, seconds: float) -> None:
    """Wait for the end of a thread. A time in which the whole process or machine stood still does not count.

    So this waits in parts, and a standstill of any length is one of them at most.
    """
    for _ in range(_PARTS):
        thread.join(seconds / _PARTS)
        if not thread.is_alive():
            return


def _stopped_at(target: Point | None) -> str:
    return " without any stop" if target is None else f' when stopped at {target} (try it alone with at="{target}")'


def _others(runner: threading.Thread) -> str:
    """The stacks of all other threads, and of the tasks that wait: what a scenario that hangs is waiting for."""
    stacks = [
        f"\nthread {thread.name}:\n{_stack_of(thread)}"
        for thread in threading.enumerate()
        if thread not in (runner, threading.current_thread())
    ]
    for task in [each for each in gc.get_objects() if isinstance(each, asyncio.Task) and not each.done()]:
        text = io.StringIO()
        task.print_stack(file=text)
        stacks.append(f"\n{text.getvalue()}")
    return "".join(stacks)


def _stack_of(thread: threading.Thread) -> str:
    frame = frame_of(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else "(it has just ended)"
