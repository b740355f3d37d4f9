"""The tools of an MCP server, here one of our own: `python mcp_tools.py serve` is the server. Needs halter[mcp]."""

import sys

from halter import Agent
from halter.models import ToolCall
from halter.testing import ScriptedModel


def serve():
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("shop")

    @server.tool()
    def price(article: str) -> str:
        """The price of an article."""
        return f"{article}: 12 EUR"

    server.run("stdio")


def main():
    from halter.toolbox import MCP

    # Or MCP.stdio("npx", ["-y", "a-server"]). The server may take its time to start; a call may not.
    with MCP.stdio(sys.executable, [__file__, "serve"], timeout=30, connect_timeout=120) as shop:
        tools = shop.tools()
        print("tools:", ", ".join(tool.name for tool in tools))
        model = ScriptedModel(ToolCall("1", "price", '{"article": "halter"}'), "It is 12 EUR.")  # or "openai:gpt-5"
        with Agent(model, tools).session() as session:
            turn = session.run("What does a halter cost?")
            print(turn.outcomes[0].content)
            print(turn.text)


if __name__ == "__main__":
    serve() if "serve" in sys.argv else main()
