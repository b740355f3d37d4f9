"""Stop a scenario at every point at which a stop could land, and see whether it holds.

``interrupt_everywhere`` runs a scenario once without a stop and notes every point that it passes:

* each line of Halter's own code and of the scenario, in every thread it starts: that covers token
  checks, callbacks, hand-overs between threads and every other place where the order matters;
* each step of the event loop, just before it runs: that covers what lies between the lines, such as
  a task whose result is there, but which has not been resumed yet.

Then it runs the scenario once more for each of these points, and cancels the token exactly there, in
the very thread that arrives. A point is named by its place and how often it was passed before, so a
failure can be run again alone, and threads that race do not shift the numbering of others.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
import threading
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.threads import end_idle_threads
from halter.cancel.token import CancellationToken, Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

_PACKAGE: Final = Path(__file__).resolve().parent.parent
_TESTING: Final = Path(__file__).resolve().parent


class InterruptFailure(AssertionError):
    """A scenario did not survive a stop at one point; the cause is chained."""


@dataclass(frozen=True)
class Point:
    """A place that a scenario passes, and for the how-manieth time."""

    place: str
    nth: int

    def __str__(self) -> str:
        return f"{self.place}#{self.nth}"


@dataclass(frozen=True)
class Report:
    """What was tried. A point is missed when the scenario, running again, did not come by."""

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
    explorer.run(None)  # so that modules are imported and caches are filled before we count
    if at is None:
        points = [point for point in explorer.run(None) if point.nth <= repeat and (only is None or only(point.place))]
    else:
        points = [point_named(at)]
    missed = [point for point in points if point not in explorer.run(point)]
    return Report(points, missed)


def points_of(scenario: Callable[[CancellationToken], Any], *, timeout: float = 30.0) -> list[Point]:
    """Run *scenario* once, without a stop, and tell which points it passes."""
    return _Explorer(scenario, None, timeout).run(None)


def interrupt_at(scenario: Callable[[CancellationToken], Any], point: Point, *, timeout: float = 30.0) -> bool:
    """Run *scenario* once, with a stop at one point; tells whether it came by there.

    For a stop that cannot be had twice in one process, such as its death: run each in a process of its own.
    """
    return point in _Explorer(scenario, None, timeout).run(point)


def point_named(name: str) -> Point:
    """The point that is written like this."""
    place, _, nth = name.rpartition("#")
    return Point(place, int(nth))


class _Explorer:
    """Runs one scenario again and again, each time in a thread and an event loop of its own."""

    def __init__(
        self,
        scenario: Callable[[CancellationToken], Any],
        check: Callable[[], object] | None,
        timeout: float,
    ) -> None:
        self._scenario = scenario
        self._check = check
        self._timeout = timeout

    def run(self, target: Point | None) -> list[Point]:
        """Run the scenario with the stop at *target*; returns the points that it passed until then."""
        token = CancellationToken(name="everywhere")
        watch = _Watch(token, target, inspect.getsourcefile(inspect.unwrap(self._scenario)))
        failure: list[BaseException] = []
        end_idle_threads()  # threads that run already would not be watched
        runner = threading.Thread(target=self._run_once, args=(token, watch, failure), daemon=True)
        with _watching(watch):
            runner.start()
            runner.join(self._timeout)
        if runner.is_alive():
            msg = f"the scenario hangs{_stopped_at(target)}; it is here:\n{_stack_of(runner)}"
            raise InterruptFailure(msg)
        if failure:
            msg = f"the scenario failed{_stopped_at(target)}: {failure[0]!r}"
            raise InterruptFailure(msg) from failure[0]
        return watch.passed

    def _run_once(self, token: CancellationToken, watch: _Watch, failure: list[BaseException]) -> None:
        """Run the scenario and its check. A boundary: whatever they raise is the finding."""
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
    """Notes the points that are passed, or cancels the token at the one that is wanted, after which it rests."""

    def __init__(self, token: CancellationToken, target: Point | None, scenario_file: str | None) -> None:
        self.passed: list[Point] = []
        self.is_at_rest = False
        self._token = token
        self._target = target
        self._target_place = "" if target is None else target.place
        self._scenario_file = scenario_file
        self._counts: Counter[str] = Counter()
        self._is_ours: dict[int, bool] = {}
        # Held for the counting only, never while the token is cancelled.
        self._lock = threading.Lock()

    def is_ours(self, code: CodeType) -> bool:
        known = self._is_ours.get(id(code))
        if known is None:
            _met[id(code)] = code
            known = _is_product(code.co_filename) or code.co_filename == self._scenario_file
            self._is_ours[id(code)] = known
        return known

    def arrive(self, place: str) -> None:
        if self._target is not None and place != self._target_place:
            return
        with self._lock:
            if self.is_at_rest:
                return
            self._counts[place] += 1
            point = Point(place, self._counts[place])
            if self._target is not None and point != self._target:
                return
            self.passed.append(point)
            self.is_at_rest = self._target is not None
        if self.is_at_rest:
            self._token.cancel("interrupt", detail=f"at {point}")


_current: _Watch | None = None


@contextlib.contextmanager
def _watching(watch: _Watch) -> Iterator[None]:
    """Tell *watch* of each line that is run meanwhile, in threads that are started from now on."""
    global _current  # noqa: PLW0603  (a trace function is the process's, and has no other way to know)
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
        sys.settrace(threading.gettrace())  # this thread was started for a run that is over: it is others' again
        return None
    if watch.is_at_rest or not watch.is_ours(frame.f_code):
        return None
    if event == "line":
        watch.arrive(place_of(frame))
    return _on_event


class _SteppedLoop(asyncio.SelectorEventLoop):
    """An event loop that tells before each of its steps what is about to run."""

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
        if not self._watch.is_at_rest:
            self._watch.arrive(f"loop step, {self._describe(callback)}")
        callback(*args)

    def _describe(self, callback: Any) -> str:
        task = getattr(callback, "__self__", None)
        if isinstance(task, asyncio.Task):
            places = [place_of(frame) for frame in _frames_of(task.get_coro()) if self._watch.is_ours(frame.f_code)]
            return f"resuming {places[-1]}" if places else "resuming a task"
        return f"calling {getattr(callback, '__qualname__', type(callback).__name__)}"


# What is asked for each line of every run has to be quick: hashing a code object is not, nor comparing paths. So both
# are known by ids, and the code objects are held, so that no other one gets the id of one that is gone.
_places: dict[tuple[int, int], str] = {}
_met: dict[int, CodeType] = {}


def place_of(frame: FrameType) -> str:
    code, line = frame.f_code, frame.f_lineno
    place = _places.get((id(code), line))
    if place is None:
        _met[id(code)] = code
        place = _places[id(code), line] = f"{_file_name(code.co_filename)}:{line} in {code.co_qualname}"
    return place


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


def _stopped_at(target: Point | None) -> str:
    return " without any stop" if target is None else f' when stopped at {target} (try it alone with at="{target}")'


def _stack_of(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001  (documented, in spite of its name)
    return "".join(traceback.format_stack(frame)) if frame is not None else "(it has just ended)"
