"""Jobs that fill the source of truth and the planes. Ray Data and `recall`; never Ray Serve, never the serving code."""
