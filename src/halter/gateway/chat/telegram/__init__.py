"""Telegram as a chat platform."""

from __future__ import annotations

from halter.gateway.chat.telegram.adapter import Telegram

__all__ = ["Telegram"]
