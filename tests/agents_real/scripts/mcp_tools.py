"""The tools as an MCP server."""

from mcp.server.mcpserver import MCPServer
from shop import add, price

server = MCPServer("till")
server.tool()(price)
server.tool()(add)
server.run()
