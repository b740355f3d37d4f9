"""Typed answers on the wires: what is sent, judged by the vendors' SDKs, and what is said if a server refuses it."""

from __future__ import annotations

import copy
import re
from typing import Any, Literal

import jsonschema
import msgspec
import pytest

from halter.models import (
    AnthropicModel,
    GeminiModel,
    ModelRequest,
    ModelSettings,
    OpenAIModel,
    OpenAIResponsesModel,
    ProviderError,
    ToolSpec,
    UserMessage,
)
from halter.models.output_schema import strict_schema
from halter.testing import FakeProvider, answer, status
from halter.tools.schema.output import OutputType
from tests.support.output_types import EXAMPLE_NAMES, EXAMPLES, City, Counts, Person, Tree
from tests.support.wires import ask, model_for, text_of

openai_types = pytest.importorskip("openai.types.chat.completion_create_params")
responses_types = pytest.importorskip("openai.types.responses")
anthropic_types = pytest.importorskip("anthropic.types.message_create_params")
openai_strict = pytest.importorskip("openai.lib._pydantic")
openai_parsing = pytest.importorskip("openai.lib._parsing")
anthropic_strict = pytest.importorskip("anthropic.lib._parse._transform")
genai_types = pytest.importorskip("google.genai.types")
pydantic = pytest.importorskip("pydantic")

LOOSE = (Counts, dict[str, int], tuple[int, str])  # what the strict form does not have
OPENAI_BODY = pydantic.TypeAdapter(openai_types.CompletionCreateParamsStreaming)
ANTHROPIC_BODY = pydantic.TypeAdapter(anthropic_types.MessageCreateParamsStreaming)
RESPONSES_FORMAT = pydantic.TypeAdapter(responses_types.ResponseFormatTextJSONSchemaConfigParam)
KEYS = {
    "openai": "response_format",
    "responses": "text",
    "anthropic": "output_config",
    "gemini": "responseJsonSchema",
}
GEMINI_SETTINGS = genai_types.GenerationConfig
# As the documentation of `responseJsonSchema` lists them.
GEMINI_KEYWORDS = {
    "$id",
    "$defs",
    "$ref",
    "$anchor",
    "type",
    "format",
    "title",
    "description",
    "enum",
    "items",
    "required",
}
GEMINI_KEYWORDS |= {"prefixItems", "minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties"}
GEMINI_KEYWORDS |= {"additionalProperties", "propertyOrdering"}


def extra_for(wire: str, value: Any = None) -> dict[str, Any]:
    """The user's own keys that replace ours."""
    return {"generationConfig": {KEYS[wire]: value}} if wire == "gemini" else {KEYS[wire]: value}


def request_for(kind: Any, *, tools: bool = False, **extra: Any) -> ModelRequest:
    return ModelRequest(
        [UserMessage.of("go")],
        "Be brief.",
        [ToolSpec("look")] if tools else [],
        ModelSettings(extra=extra),
        output=OutputType(kind).schema,
    )


def openai_model() -> OpenAIModel:
    return OpenAIModel("m", base_url="https://api.openai.com/v1", api_key="k")


@pytest.mark.parametrize(("kind", "text"), [each[:2] for each in EXAMPLES], ids=EXAMPLE_NAMES)
def test_openai_accepts_the_schema(kind: Any, text: str) -> None:
    """The body is of the SDK's type, and its strict schema is one that the SDK would not change."""
    body = openai_model().body(request_for(kind, tools=True))
    OPENAI_BODY.validate_python(body)
    sent = body["response_format"]["json_schema"]
    jsonschema.validate(msgspec.json.decode(text), sent["schema"])
    assert sent["strict"] == (kind not in LOOSE)
    if sent["strict"]:
        schema = copy.deepcopy(sent["schema"])
        assert openai_strict._ensure_strict_json_schema(schema, path=(), root=schema) == sent["schema"]
    assert body["messages"][0].content == "Be brief."  # OpenAI shows the schema to the model itself


@pytest.mark.parametrize(("kind", "text"), [each[:2] for each in EXAMPLES], ids=EXAMPLE_NAMES)
def test_anthropic_accepts_the_schema(kind: Any, text: str) -> None:
    """The body is of the SDK's type, and its schema is one that the SDK would not change, but for types of choices."""
    body = AnthropicModel("m", api_key="k").body(request_for(kind, tools=True))
    ANTHROPIC_BODY.validate_python(body)
    if kind in (*LOOSE, Tree):
        assert "output_config" not in body
        assert '{"value"' in body["system"][0]["text"] or '"properties"' in body["system"][0]["text"]
        return
    schema = body["output_config"]["format"]["schema"]
    jsonschema.validate(msgspec.json.decode(text), schema)
    assert anthropic_strict.transform_schema(schema) == without_types_of_choices(schema)
    assert body["system"][0]["text"] == "Be brief."


def without_types_of_choices(node: Any) -> Any:
    if isinstance(node, list):
        return [without_types_of_choices(each) for each in node]
    if not isinstance(node, dict):
        return node
    has_choices = "enum" in node or "const" in node
    return {key: without_types_of_choices(each) for key, each in node.items() if not (key == "type" and has_choices)}


@pytest.mark.parametrize("kind", [Person, Tree])
def test_the_schema_means_what_the_sdk_sends(kind: Any) -> None:
    """OpenAI's SDK makes a schema from a pydantic model that accepts and refuses the same answers as ours."""
    theirs = openai_parsing.type_to_response_format_param(kind)["json_schema"]["schema"]
    ours = openai_model().body(request_for(kind))["response_format"]["json_schema"]["schema"]
    wholes: dict[Any, dict[str, Any]] = {
        Person: {"name": "Ada", "home": None, "tags": ["a"]},
        Tree: {"name": "a", "below": [{"name": "b", "below": []}]},
    }
    whole = wholes[kind]
    wrong: list[dict[str, Any]] = [{**whole, "name": 5}, {**whole, "more": 1}]
    wrong += [{key: value for key, value in whole.items() if key != left_out} for left_out in whole]
    for value, is_right in [(whole, True), *((each, False) for each in wrong)]:
        wrapped = {"value": value} if "value" in ours["properties"] else value
        assert jsonschema.Draft202012Validator(theirs).is_valid(value) == is_right
        assert jsonschema.Draft202012Validator(ours).is_valid(wrapped) == is_right


def test_what_is_not_enforced_is_described() -> None:
    """Limits that providers refuse in a schema are moved into descriptions, where the model can read them."""
    schema = strict_schema(OutputType(City).schema.schema, all_required=True)
    assert schema is not None
    assert schema["properties"]["people"] == {"type": "integer", "description": "Who lives there. (minimum: 0)"}
    assert schema["properties"]["founded"]["anyOf"][0] == {"type": "string", "format": "date"}
    assert schema["required"] == ["name", "people", "founded"]


def test_what_is_nested_too_deeply_is_not_strict() -> None:
    """The limit was Python's own, which grew with 3.12: the gateway then asked a model that it used to refuse."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(50):
        schema = {"type": "object", "properties": {"a": schema}}
    assert strict_schema(schema, all_required=True) is not None
    for _ in range(50):
        schema = {"type": "object", "properties": {"a": schema}}
    assert strict_schema(schema, all_required=True) is None


@pytest.mark.parametrize(("tools", "enforced"), [(False, True), (True, False)])
def test_other_servers_show_the_schema_to_the_model(tools: bool, enforced: bool) -> None:
    """They constrain the answer without telling the model; with tools it is only told, or it could not call them."""
    body = OpenAIModel("m", base_url="http://127.0.0.1:1/v1").body(request_for(City, tools=tools))
    assert ("response_format" in body) == enforced
    system = body["messages"][0].content
    assert system.startswith("Be brief.\n\nYour final answer must be one JSON value")
    assert '"people"' in system


@pytest.mark.parametrize("wire", KEYS)
def test_the_schema_can_be_described_only(wire: str) -> None:
    """`extra={KEY: None}` is for servers that refuse the schema: it goes into the instructions instead."""
    with FakeProvider(answer('{"name": "Bonn", "people": 3}')) as provider:
        events = ask(model_for(wire, provider), request_for(City, tools=False, **extra_for(wire)))
        sent = provider.requests[0].body
    assert text_of(events) == '{"name": "Bonn", "people": 3}'
    assert KEYS[wire] not in (sent.get("generationConfig", {}) if wire == "gemini" else sent)
    assert "Your final answer must be one JSON value" in msgspec.json.encode(sent).decode()


@pytest.mark.parametrize("wire", KEYS)
def test_a_server_that_refuses_the_schema(wire: str) -> None:
    """The error says which setting helps; an error about something else does not mention it."""
    refusal = status(400, f"{KEYS[wire]} is not supported by this model")
    with FakeProvider(refusal, status(400, "the model is tired")) as provider:
        with pytest.raises(ProviderError, match=re.escape(f"ModelSettings(extra={extra_for(wire)})")):
            ask(model_for(wire, provider), request_for(City))
        with pytest.raises(ProviderError) as other:
            ask(model_for(wire, provider), request_for(City))
    assert "ModelSettings" not in str(other.value)


def test_the_users_own_format_wins() -> None:
    """What `extra` says about the format is sent as it is, and the schema is in the instructions."""
    own = {"type": "json_object"}
    with FakeProvider(answer("{}")) as provider:
        ask(model_for("openai", provider), request_for(City, response_format=own))
        assert provider.requests[0].body["response_format"] == own


def test_choices_of_several_types_have_a_type_each() -> None:
    """Strict providers want a type beside every list of choices."""
    schema = strict_schema(OutputType(Literal["a", "b", 3]).schema.schema, all_required=True)
    assert schema is not None
    choices = schema["properties"]["value"]["anyOf"]
    assert {each["type"]: each["enum"] for each in choices} == {"integer": [3], "string": ["a", "b"]}


def test_an_effort_beside_the_schema() -> None:
    """Anthropic's `output_config` may be set for something else: then the schema is described, and not lost."""
    body = AnthropicModel("m", api_key="k").body(request_for(City, output_config={"effort": "low"}))
    assert '"people"' in body["system"][0]["text"]


@pytest.mark.parametrize(("kind", "text"), [each[:2] for each in EXAMPLES], ids=EXAMPLE_NAMES)
@pytest.mark.parametrize("name", ["gemini-3-pro", "gemini-2.5-flash"])
@pytest.mark.parametrize("tools", [False, True], ids=["alone", "with tools"])
def test_gemini_accepts_the_schema(kind: Any, text: str, name: str, tools: bool) -> None:
    """The settings are of the SDK's type, the schema has only documented keywords; else it is described."""
    body = GeminiModel(name, api_key="k").body(request_for(kind, tools=tools))
    settings = GEMINI_SETTINGS.model_validate(body.get("generationConfig", {}))
    told = body["systemInstruction"]["parts"][0]["text"]
    if kind is Tree or (tools and name == "gemini-2.5-flash"):
        assert settings.response_json_schema is settings.response_mime_type is None
        assert "Your final answer must be one JSON value" in told
        return
    assert settings.response_mime_type == "application/json"
    assert told == "Be brief."
    jsonschema.validate(msgspec.json.decode(text), settings.response_json_schema)
    assert keywords_of(settings.response_json_schema) <= GEMINI_KEYWORDS


def keywords_of(schema: Any) -> set[str]:
    """The keywords of a schema and of those in it."""
    if not isinstance(schema, dict):
        assert isinstance(schema, bool)
        return set()
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), *schema.get("prefixItems", ())]
    inner += [schema[key] for key in ("items", "additionalProperties") if key in schema]
    return schema.keys() | {key for each in inner for key in keywords_of(each)}


def test_gemini_is_told_what_it_does_not_enforce() -> None:
    """A keyword that its schemas do not have is part of the description."""
    schema = GeminiModel("gemini-3-pro").body(request_for(Person))["generationConfig"]["responseJsonSchema"]
    assert schema["properties"]["name"] == {"type": "string", "title": "Name", "description": "(minLength: 2)"}


def test_own_settings_of_gemini_stand_beside_ours() -> None:
    """`extra={"generationConfig": ...}` adds to what is sent, or replaces it key by key."""
    request = request_for(City, generationConfig={"topK": 3, "temperature": None})
    request = msgspec.structs.replace(
        request, settings=msgspec.structs.replace(request.settings, temperature=0.5, seed=7)
    )
    with FakeProvider(answer("{}")) as provider:
        ask(model_for("gemini", provider), request)
        sent = provider.requests[0].body["generationConfig"]
    assert (sent["topK"], sent["seed"], "temperature" in sent) == (3, 7, False)
    assert sent["responseMimeType"] == "application/json"


@pytest.mark.parametrize("kind", [City, Tree, *LOOSE])
def test_responses_accepts_the_schema(kind: Any) -> None:
    """The format has the fields of the SDK's type, and is strict where the schema can be."""
    form = OpenAIResponsesModel("m", api_key="k").body(request_for(kind))["text"]["format"]
    RESPONSES_FORMAT.validate_python(form)
    assert form["strict"] == (kind not in LOOSE)
