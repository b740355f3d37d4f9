"""What all readers share."""

from __future__ import annotations

import pytest

from halter.models import Usage
from halter.testing import FakeProvider, raw
from tests.support.wires import WIRES, ask, model_for, text_of

ANSWERS = {
    "openai": b'{"choices":[{"message":{"content":"all"},"finish_reason":"stop"}],"usage":%s}',
    "responses": b'{"status":"completed","output":[{"type":"message","content":[{"text":"all"}]}],"usage":%s}',
    "anthropic": b'{"type":"message","content":[{"type":"text","text":"all"}],"stop_reason":"end_turn","usage":%s}',
    "gemini": b'{"candidates":[{"content":{"parts":[{"text":"all"}]},"finishReason":"STOP"}],"usageMetadata":%s}',
}
INPUT = {"openai": "prompt_tokens", "gemini": "promptTokenCount"}
OUTPUT = {"openai": "completion_tokens", "gemini": "candidatesTokenCount"}


@pytest.mark.parametrize("output", ['"12"', "[1]", "-5", "1" + "0" * 400, "1e300", "null"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_wrong_count_does_not_cost_the_answer(wire: str, output: str) -> None:
    """A server that reported `12.0` tokens, or a text, lost its whole answer: three paid attempts, a failed turn."""
    names = INPUT.get(wire, "input_tokens"), OUTPUT.get(wire, "output_tokens")
    usage = b'{"%s": 12.0, "%s": %s}' % (names[0].encode(), names[1].encode(), output.encode())
    with FakeProvider(raw(ANSWERS[wire] % usage, content_type="application/json")) as provider:
        events = ask(model_for(wire, provider, stream=False))
    assert text_of(events) == "all"
    assert Usage(12) in events
