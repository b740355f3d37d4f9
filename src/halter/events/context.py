"""The events of a compaction: from here on, less of the conversation is sent to the model; or nothing has changed."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from halter.models.types import Usage

__all__ = ["CompactionReason", "ContextCompacted", "SummaryDiscarded"]

CompactionReason: TypeAlias = Literal["full", "too_long", "asked"]


class ContextCompacted(Struct, frozen=True, tag="context.compacted"):
    """The beginning of the conversation is replaced in what is sent to the model. The log keeps all of it.

    Each one stands for itself: it replaces what an earlier one said. Messages are counted from the beginning of the
    conversation, without those of turns that were rolled back before.
    """

    why: CompactionReason
    how: Literal["shortened", "summarised", "dropped"]
    before: int  # tokens of the next request, estimated
    after: int
    upto: int = 0  # this many messages are no longer sent
    kept: list[int] = []  # which of them are still sent, word for word: the user's last ones
    note: str = ""  # the summary that is sent instead
    dropped: int = 0  # how many of them are not in the summary either
    shortened: dict[str, int] = {}  # results that are sent in part: id of the call, and how many characters
    window: int = 0  # of the model, if it was known
    refused: int = 0  # the smallest size, in tokens, that the provider has refused; 0 if it has not
    model: str = ""
    error: str = ""  # why there is no summary, if there should be one
    usage: Usage = Usage()  # of the request that wrote the summary


class SummaryDiscarded(Struct, frozen=True, tag="context.summary_discarded"):
    """A summary was asked for and is not used. What is sent to the model is as it was before."""

    reason: str  # of the stop or the steer; empty if the conversation has changed meanwhile, or nothing was gained
    usage: Usage = Usage()  # of the request for it
