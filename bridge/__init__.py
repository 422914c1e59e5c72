"""mcp-bridge."""
