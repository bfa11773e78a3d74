"""The HTTP face: Basalt's API as a plain ASGI application. Its calls are described in docs/reference/http-api.md."""
