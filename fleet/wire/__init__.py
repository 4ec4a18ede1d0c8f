"""The wire engine: HTTP/2, byte templates, decoders, watches."""
