"""Ray Serve deployments: HTTP and MCP in front of the recall core."""
