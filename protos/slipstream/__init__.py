"""The wire: schemas, generated stubs, server and channel bootstrap, the typed client. Never imports torch."""
