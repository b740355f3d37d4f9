"""The agents of a gateway as OpenAI's clients list models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ModelList", "ModelView", "list_models"]


class ModelView(Struct, kw_only=True):
    """An agent, by its name. `created` is when the gateway was started."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "halter"


class ModelList(Struct, kw_only=True):
    """All agents."""

    object: Literal["list"] = "list"
    data: list[ModelView]


def list_models(names: Iterable[str], created: int) -> ModelList:
    """The list of these agents."""
    return ModelList(data=[ModelView(id=name, created=created) for name in names])
